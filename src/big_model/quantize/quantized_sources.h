#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <accelerate/quantize.h>

#include "format/tensors/stored_tensors.h"

namespace accelerate::detail {

/// A layer to be quantised, and its weight parameter.
struct QuantizedSource {
  std::string module_name;
  at::Tensor parameter;
};

/// Where the weights of layers come from: files, with plain values or already
/// quantised in bitsandbytes' layout, or the parameters themselves.
class QuantizedSources {
 public:
  /// `location` is empty to use the parameters. Throws CheckpointError with
  /// every weight that is missing or has a different shape, ConfigError for
  /// parameters that are not finite.
  QuantizedSources(
      std::vector<QuantizedSource> sources,
      const std::filesystem::path& location,
      const std::function<std::string(const std::string&)>& rename);

  /// The weight of one layer, on the CPU. Values in files are converted to
  /// `dtype` first.
  [[nodiscard]] QuantizedWeight quantized(
      std::size_t source,
      const QuantizeWeightOptions& options,
      c10::ScalarType dtype) const;

  /// Names of the tensors in the files that belong to these weights.
  [[nodiscard]] std::vector<std::string> names() const;

 private:
  /// The stored tensors of one weight by their names in the layer: "weight",
  /// and if it is quantised, "weight.absmax" and others or "SCB".
  using Parts = std::map<std::string, const StoredTensor*>;

  void require_all(const std::filesystem::path& location) const;
  void require_finite() const;

  std::vector<QuantizedSource> sources_;
  StoredTensors stored_;
  std::vector<Parts> parts_;
};

}  // namespace accelerate::detail
