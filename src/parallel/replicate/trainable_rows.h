#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include <ATen/core/Tensor.h>

#include "params/parameter_table.h"

namespace accelerate::detail {

/// What buckets of a parameter's gradients depend on.
struct ParameterKind {
  at::ScalarType dtype;
  at::Device device;
  std::int64_t numel;
  bool operator==(const ParameterKind&) const = default;
};
[[nodiscard]] ParameterKind kind_of(const at::Tensor& parameter);

/// The parameters whose gradients are averaged together, and their names.
struct TrainableRows {
  std::vector<at::Tensor> tensors;
  std::vector<ParameterKind> kinds;
  std::vector<std::string> names;
  std::unordered_map<const c10::TensorImpl*, std::size_t> numbers;

  [[nodiscard]] bool contains(const at::Tensor& tensor) const {
    return numbers.contains(tensor.unsafeGetTensorImpl());
  }
};

/// Returns the trained rows for which `is_chosen` returns true.
TrainableRows trainable_rows(
    const ParameterTable& table,
    bool (*is_chosen)(const Parameter& row));

}  // namespace accelerate::detail
