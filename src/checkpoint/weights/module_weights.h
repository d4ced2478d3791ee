#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accelerate/weights.h>

#include "base/progress/byte_progress.h"
#include "format/tensors/stored_tensors.h"
#include "format/tensors/tensor_writer.h"

namespace accelerate::detail {

/// Describes how a sharded tensor is written; returns nothing for a tensor that
/// the module holds in full.
using WriteShardedTensor = std::function<std::optional<TensorToWrite>(
    const std::string& name,
    const at::Tensor& tensor)>;

/// Returns a progress bar for a number of bytes; null if none is shown.
using ShowProgress =
    std::function<std::shared_ptr<ByteProgress>(std::uint64_t num_bytes)>;

/// Replaces each weight that is held as codes by its codes and their scales,
/// under the names of bitsandbytes; the scales follow the layer's bias.
WeightList with_codes(const WeightList& weights);

/// Implements save_model(), also for a module with sharded tensors. `prefix` is
/// prepended to names.
std::vector<std::string> write_module(
    const torch::nn::Module& module,
    const std::filesystem::path& directory,
    const SaveModelOptions& options,
    const WriteShardedTensor& write_sharded = nullptr,
    const std::string& prefix = {},
    const ShowProgress& show_progress = nullptr);

/// Opens the tensors in the files and renames them according to `options`.
StoredTensors open_renamed(
    const std::filesystem::path& path,
    const LoadModelOptions& options);

/// Throws one CheckpointError with all complaints, if there are any.
void require_fit(
    const std::filesystem::path& path,
    const std::vector<std::string>& complaints);

}  // namespace accelerate::detail
