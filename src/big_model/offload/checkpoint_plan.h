#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <accelerate/load_checkpoint.h>

#include "format/tensors/stored_tensors.h"

namespace accelerate::detail {

/// A tensor of a checkpoint and its destination.
struct TensorToLoad {
  std::string name;
  /// The module's tensor; undefined if another name of it stays in memory.
  at::Tensor tensor = {};
  /// Null on ranks that do not read.
  const StoredTensor* stored = nullptr;
  std::vector<std::int64_t> shape = {};
  c10::ScalarType file_dtype = c10::ScalarType::Undefined;
  /// Final dtype of the module's tensor.
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  c10::Device device = c10::kCPU;
  /// Written to the offload folder. The module's tensor is then on the meta
  /// device, unless it has another name with a place in memory.
  bool to_disk = false;
  bool stays = true;
};

/// A tensor of a checkpoint as all ranks know it.
struct TensorInCheckpoint {
  std::string name;
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  std::vector<std::int64_t> shape;
};

/// Whether one of the modules has the tensor
/// (LoadCheckpointOptions::keep_in_fp32_modules).
bool is_kept_in_fp32(
    const std::string& name,
    const std::vector<std::string>& modules);

/// The tensors of a checkpoint, in the order in which files have them. Throws
/// CheckpointError for dtypes that LibTorch lacks.
std::vector<TensorInCheckpoint> tensors_in_order(const StoredTensors& saved);

/// Decides for every tensor, and throws the errors of load_checkpoint_in_model()
/// before anything is loaded. `path` is named in messages.
std::vector<TensorToLoad> plan_loading(
    const torch::nn::Module& model,
    const std::vector<TensorInCheckpoint>& saved,
    const std::string& path,
    const LoadCheckpointOptions& options);

}  // namespace accelerate::detail
