#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accelerate/detail/pipeline_value.h>

namespace accelerate::detail {

/// What is known about a tensor before it arrives. An optional without a value
/// has dtype Undefined.
struct TensorSignature {
  at::ScalarType dtype = at::kFloat;
  /// True if its gradient is sent back.
  bool requires_grad = false;
  std::vector<std::int64_t> sizes;
  /// How its values lie in memory, without gaps. The next stage gets them so,
  /// since kernels may round differently in another layout.
  std::vector<std::int64_t> strides;

  /// Ignores strides: values of other strides are sent in those of the first.
  bool operator==(const TensorSignature& other) const {
    return dtype == other.dtype && requires_grad == other.requires_grad &&
        sizes == other.sizes;
  }
};

/// What must be known about a value in order to receive it.
struct ValueSignature {
  std::vector<TensorSignature> tensors;
  std::string structure;

  bool operator==(const ValueSignature&) const = default;
};

/// `trains`: tensors that require a gradient get theirs sent back.
ValueSignature signature_of(const PipelineValue& value, bool trains);

/// Encodes a signature as a message, and decodes it.
std::vector<std::int64_t> numbers_of(const ValueSignature& signature);
ValueSignature signature_in(const std::vector<std::int64_t>& numbers);

/// Formats a signature, as in "Float [2, 3], Long [2] without gradient".
std::string text_of(const ValueSignature& signature);

/// Views a tensor with its dimensions in the order of the signature's strides:
/// contiguous if it has these strides.
at::Tensor in_memory_order(
    const at::Tensor& tensor,
    const TensorSignature& signature);

/// Returns a tensor to receive into, with the signature's strides.
at::Tensor empty_like(const TensorSignature& signature, at::Device device);

}  // namespace accelerate::detail
