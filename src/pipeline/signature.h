#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accelerate/detail/pipeline_value.h>

namespace accelerate::detail {

/// What is known of a tensor before it arrives. An optional without value has
/// the dtype Undefined.
struct TensorSignature {
  at::ScalarType dtype = at::kFloat;
  /// Its gradient comes back.
  bool requires_grad = false;
  std::vector<std::int64_t> sizes;

  bool operator==(const TensorSignature&) const = default;
};

/// What is known of a value before it arrives, so that it can be received.
struct ValueSignature {
  std::vector<TensorSignature> tensors;
  std::string structure;

  bool operator==(const ValueSignature&) const = default;
};

/// `trains`: gradients of the tensors that require some come back.
ValueSignature signature_of(const PipelineValue& value, bool trains);

/// As a message, and back.
std::vector<std::int64_t> numbers_of(const ValueSignature& signature);
ValueSignature signature_in(const std::vector<std::int64_t>& numbers);

/// For people: "Float [2, 3], Long [2] without gradient".
std::string text_of(const ValueSignature& signature);

/// A tensor to receive into.
at::Tensor empty_like(const TensorSignature& signature, at::Device device);

}  // namespace accelerate::detail
