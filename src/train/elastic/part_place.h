#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace accelerate::detail {

/// One of the parts into which the machines of a group divide a state.
struct PartPlace {
  /// See shape_of().
  std::string shape;
  std::size_t part = 0;
  std::size_t num_parts = 0;
};

/// "2x4": two machines with four ranks each; "1x3,2x1": one with three and two
/// with one. `firsts`: the machines' first ranks.
std::string shape_of(const std::vector<int>& firsts, int num_ranks);

/// The directory in which machine `machine` of a group of this shape keeps its
/// parts: "machine_0_of_2x4".
std::string part_directory(std::size_t machine, const std::string& shape);
/// Nothing if `name` is not such a directory.
std::optional<PartPlace> parse_part_directory(const std::string& name);

}  // namespace accelerate::detail
