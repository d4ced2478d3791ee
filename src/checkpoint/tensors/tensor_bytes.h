#pragma once

#include <optional>
#include <span>

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <accelerate/safetensors.h>

#include "format/tensors/tensor_writer.h"

namespace accelerate::detail {

/// The format's dtype; nothing if it lacks that dtype (complex double,
/// quantized).
std::optional<safetensors::Dtype> file_dtype(c10::ScalarType dtype);
/// LibTorch's dtype; nothing if it lacks that dtype (F6_E2M3 and F6_E3M2).
std::optional<c10::ScalarType> torch_dtype(safetensors::Dtype dtype);

/// The shape in elements as the format counts them: each of LibTorch's packed
/// 4-bit elements counts as two, along the last dimension.
safetensors::Shape file_shape(const at::Tensor& tensor);
/// The inverse of file_shape(). Throws CheckpointError if packed elements do
/// not fill whole bytes.
std::vector<std::int64_t> torch_shape(
    safetensors::Dtype dtype,
    const safetensors::Shape& shape);

/// Identifies where a tensor's memory begins, also for tensors that are
/// offloaded or held as codes.
const void* memory_of(const at::Tensor& tensor);

/// Describes a tensor to be written. Its bytes are read in place if it is
/// contiguous on the CPU, otherwise copied chunk by chunk; an offloaded tensor
/// is fetched for each chunk, and one that is held as codes is dequantised. The
/// result keeps `tensor` alive. Throws ConfigError naming `name` for what a
/// file cannot hold: dtypes that the format lacks, sparse and meta tensors.
TensorToWrite to_write(const std::string& name, const at::Tensor& tensor);

/// Describes what to_write() would write, without the bytes; `tensor` may be a
/// meta tensor.
TensorToWrite described(const std::string& name, const at::Tensor& tensor);

/// Call before writing to fresh memory: huge pages make the first touch several
/// times cheaper. Otherwise it costs about as much as reading from a disk.
void prefer_huge_pages(const at::Tensor& tensor);

/// The memory of a contiguous CPU tensor.
std::span<std::byte> bytes_of(const at::Tensor& tensor);

/// Whether elements of the tensor may share memory, as those of an expanded
/// view do.
bool may_share_elements(const at::Tensor& tensor);

/// Whether a tensor with the sizes and strides of `target` can have these
/// values: elements that share memory have equal ones. `values` has its sizes
/// and dtype.
bool can_assign(const at::Tensor& target, const at::Tensor& values);

/// Copies values, of any dtype and device, to a tensor of the same sizes whose
/// elements may share memory. Returns false, and changes nothing, if they
/// cannot have these values.
[[nodiscard]] bool assign(const at::Tensor& target, const at::Tensor& values);

}  // namespace accelerate::detail
