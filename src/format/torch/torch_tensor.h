#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <accelerate/safetensors.h>

#include "format/tensors/hidden_bits.h"
#include "format/torch/pickle_reader.h"

namespace accelerate::detail {

/// A tensor in a torch.save file: a view of a storage.
struct TorchTensor {
  safetensors::Dtype dtype = safetensors::Dtype::F32;
  /// Key of its storage in the file: equal keys share memory.
  std::string storage;
  /// The full storage, little-endian, in the file's mapping.
  std::span<const std::byte> bytes;
  /// Offset in elements.
  std::uint64_t offset = 0;
  safetensors::Shape sizes;
  safetensors::Shape strides;
  HiddenBits hidden_bits;
  bool requires_grad = false;

  [[nodiscard]] bool is_contiguous() const;
  /// The elements, one row after another.
  [[nodiscard]] std::vector<std::byte> contiguous() const;
};

/// The dtype that a pickle names, directly or as the dtype of a storage.
/// Nothing for dtypes that safetensors does not have.
std::optional<safetensors::Dtype> torch_dtype_of(const Pickle::Value& value);

/// Bytes of an element of a dtype that torch_dtype_of() returns.
std::size_t element_bytes(safetensors::Dtype dtype);

/// The value itself, where LibTorch has added the type of a container. Lists of
/// numbers or tensors that it writes as calls become lists.
Pickle::Value without_type(const Pickle::Value& value);

/// The place of a tensor, for messages.
struct TensorPlace {
  std::string_view path;
  /// Its name in the file; empty if unknown.
  std::string_view name = {};

  /// Throws CheckpointError.
  [[noreturn]] void fail(std::string_view what) const;
};

/// The call that makes a tensor from a storage, and what enclosing calls, which
/// make it a parameter or buffer, add.
struct TensorCall {
  /// (storage, offset, sizes, strides, requires_grad, hooks, ...)
  Pickle::Value arguments;
  /// The dtype; unset if the storage has it.
  std::optional<Pickle::Value> dtype;
  bool requires_grad = false;
  HiddenBits hidden_bits;
};

/// Nothing if the value is not a tensor. Throws CheckpointError for tensors
/// that are not dense views of a storage.
std::optional<TensorCall> tensor_call_in(
    const Pickle::Value& value,
    const TensorPlace& place);

/// The sizes or strides in a tuple. Throws CheckpointError for negative
/// sizes, and for more dimensions than are read.
safetensors::Shape torch_shape_in(
    const Pickle::Value& value,
    const TensorPlace& place);

}  // namespace accelerate::detail
