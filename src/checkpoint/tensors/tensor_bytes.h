#pragma once

#include <optional>
#include <span>

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <accelerate/safetensors.h>

#include "format/tensors/tensor_writer.h"

namespace accelerate::detail {

/// Nothing where the format has no such dtype (complex double, quantized).
ACCELERATE_API std::optional<safetensors::Dtype> file_dtype(
    c10::ScalarType dtype);
/// Nothing where LibTorch has none (F6_E2M3 and F6_E3M2).
ACCELERATE_API std::optional<c10::ScalarType> torch_dtype(
    safetensors::Dtype dtype);

/// As the format counts elements: two for each of LibTorch's packed 4-bit ones,
/// along the last dimension.
safetensors::Shape file_shape(const at::Tensor& tensor);
/// The other way. Throws CheckpointError where packed elements do not fill
/// bytes.
ACCELERATE_API std::vector<std::int64_t> torch_shape(
    safetensors::Dtype dtype,
    const safetensors::Shape& shape);

/// For a file. Reads the tensor where it lies if it is dense on the CPU, else
/// through copies of a chunk each. `tensor` stays alive as long as the result.
/// Throws ConfigError naming `name` for what a file cannot hold: a dtype the
/// format has not, sparse and meta tensors.
ACCELERATE_API TensorToWrite
to_write(const std::string& name, const at::Tensor& tensor);

/// The same without its bytes; meta tensors too.
TensorToWrite described(const std::string& name, const at::Tensor& tensor);

/// Before fresh memory is written to: large pages make the first touch, which
/// else costs about as much as reading from a disk, several times cheaper.
void prefer_huge_pages(const at::Tensor& tensor);

/// The memory of a contiguous CPU tensor.
ACCELERATE_API std::span<std::byte> bytes_of(const at::Tensor& tensor);

}  // namespace accelerate::detail
