#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include <accelerate/parallelism_config.h>

#include "config/settings.h"

namespace accelerate::detail {

/// `given` with every unset field filled in: from the launcher's `settings`,
/// else the default; what belongs to a degree of 1 is left unset. Throws one
/// ConfigError with everything that is wrong.
ParallelismConfig resolve_parallelism(
    const ParallelismConfig& given,
    const Settings& settings);

/// A dimension of Accelerate's mesh of ranks.
struct MeshDimension {
  std::string_view name;
  int size;
};

/// The ranks of a resolved configuration as a grid, as Accelerate names its
/// dimensions. Ranks count along the last dimension fastest.
class NamedMesh {
 public:
  explicit NamedMesh(const ParallelismConfig& config);

  /// Dimensions larger than 1, outermost first.
  [[nodiscard]] const std::vector<MeshDimension>& dimensions() const {
    return dimensions_;
  }
  [[nodiscard]] int size() const;
  [[nodiscard]] int size_of(std::string_view name) const;
  /// Those of `names` that are larger than 1, in the order of `names`.
  [[nodiscard]] std::vector<std::string> active(
      const std::vector<std::string_view>& names) const;

  [[nodiscard]] std::vector<int> coordinate(int rank) const;
  /// The ranks that differ from `rank` along `names` only, itself included.
  [[nodiscard]] std::vector<int> group(
      int rank,
      const std::vector<std::string>& names) const;

 private:
  std::vector<MeshDimension> dimensions_;
};

/// Whose ranks have different data; whose have the same.
inline const std::vector<std::string_view> kDataDimensions{
    "dp_replicate",
    "dp_shard"};
inline const std::vector<std::string_view> kSameDataDimensions{
    "tp",
    "cp",
    "sp"};
/// Over which a sharded model is split, and over which losses are averaged.
inline const std::vector<std::string_view> kShardDimensions{"dp_shard", "cp"};
inline const std::vector<std::string_view> kLossDimensions{
    "dp_replicate",
    "dp_shard",
    "cp"};

}  // namespace accelerate::detail
