#pragma once

#include <string>

#include <ATen/core/Tensor.h>

#include <accelerate/export.h>

namespace accelerate {

/// Reads the tensor in an IDX file, the format of MNIST and similar datasets,
/// with the file's shape and dtype (kByte, kChar, kShort, kInt, kFloat or
/// kDouble), into memory of its own.
///
///     TensorDataset(
///         read_idx(images).to(at::kFloat).div(255),
///         read_idx(labels).to(at::kLong))
///
/// Throws Error if the file cannot be read, ConfigError if it is not an IDX
/// file, is still compressed, or is not as long as its header says.
[[nodiscard]] ACCELERATE_API at::Tensor read_idx(const std::string& path);

}  // namespace accelerate
