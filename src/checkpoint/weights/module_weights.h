#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accelerate/weights.h>

#include "format/tensors/stored_tensors.h"
#include "format/tensors/tensor_writer.h"

namespace accelerate::detail {

/// How a tensor is written that a module does not hold whole; nothing for one
/// that it does.
using SplitTensor = std::function<std::optional<TensorToWrite>(
    const std::string& name,
    const at::Tensor& tensor)>;

/// save_model() of a module of whose tensors some may be split. `prefix` comes
/// before their names.
std::vector<std::string> write_module(
    const torch::nn::Module& module,
    const std::filesystem::path& directory,
    const SaveModelOptions& options,
    const SplitTensor& split = nullptr,
    const std::string& prefix = {});

/// What is in the files, under the names that `options` give.
StoredTensors open_renamed(
    const std::filesystem::path& path,
    const LoadModelOptions& options);

/// Throws one CheckpointError with everything that does not fit.
void require_fit(
    const std::filesystem::path& path,
    const std::vector<std::string>& complaints);

}  // namespace accelerate::detail
