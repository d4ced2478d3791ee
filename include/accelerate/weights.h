#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accelerate/byte_size.h>
#include <accelerate/export.h>
#include <accelerate/fully_sharded.h>

namespace torch::nn {
class Module;
}

namespace accelerate {

/// A model's tensors by name, in the order of PyTorch's state_dict(): for each
/// module its parameters, then its buffers, then its children's. Tensors with
/// several names appear under each.
using WeightList = std::vector<std::pair<std::string, at::Tensor>>;

/// The module's own tensors, not copies. Undefined ones are omitted.
ACCELERATE_API WeightList get_state_dict(const torch::nn::Module& module);

struct SaveModelOptions {
  /// Maximum size of each file, unless a single tensor is larger.
  ByteSize max_shard_size = "10GB";
  /// If false, pytorch_model.bin, a torch.save file, instead of safetensors:
  /// for programs that cannot read those.
  bool safe_serialization = true;
};

/// Writes a model's weights as Hugging Face does: model.safetensors, or, beyond
/// max_shard_size, model-00001-of-0000N.safetensors and an index. Tied weights
/// are written once. All files are durable before any gets its name; files that
/// an earlier save left, in either format, are removed. LibTorch's
/// torch::pickle_load() reads pytorch_model.bin as well. Creates `directory`.
/// Returns the names that are left out because their tensor is written under
/// another name. Throws ConfigError for an invalid size, for tensors without
/// values, and for a directory that is a checkpoint; Error if a file cannot be
/// written.
ACCELERATE_API std::vector<std::string> save_model(
    const torch::nn::Module& module,
    const std::filesystem::path& directory,
    const SaveModelOptions& options = {});

struct LoadModelOptions {
  /// Every tensor of the module must be in the files, and vice versa; numpy
  /// arrays in the files, which are not read, count as tensors. If false,
  /// tensors that are in only one of them are left unchanged; shapes, and at
  /// least one name, must still match.
  bool strict = true;
  /// Names of tensors that are left unchanged, whether the files have them or
  /// not; patterns with * and ?.
  std::vector<std::string> skip = {};
  /// Names of tensors that the files may lack in spite of `strict`; patterns as
  /// in `skip`.
  std::vector<std::string> allow_missing = {};
  /// Maps a name in the files to one in the module, if they differ, as between
  /// a Python and a C++ program; returns an empty string for a tensor to be
  /// ignored. See rename_prefixes().
  std::function<std::string(const std::string& name)> rename = nullptr;
  /// Only rank 0 reads, and sends the others their tensors: for files that are
  /// only on its node, or a disk slower than the network. For
  /// Accelerator::load_model() only, and without effect on a pipeline. Unset:
  /// true if the model's sharding settings have cpu_ram_efficient_loading.
  std::optional<bool> broadcast_from_rank0 = std::nullopt;
};

/// Options of Accelerator::get_state_dict() for a sharded model.
struct StateDictOptions {
  /// full_state_dict: full tensors, copied to the CPU. Otherwise this rank's
  /// own shards, not copies; WeightShard says where they belong.
  StateDictType type = StateDictType::full_state_dict;
  /// Full tensors on rank 0 only, and nothing on other ranks. False: on all,
  /// which costs a broadcast, and memory for the full model per rank.
  bool rank0_only = true;
};

/// This rank's shard of a tensor, or a full tensor if it is not sharded. A rank
/// that has several ranges of a tensor's rows (attention heads in a matrix of
/// queries, keys and values) has a shard for each.
struct WeightShard {
  /// Name of the tensor in the model.
  std::string name;
  /// The shard's elements.
  at::Tensor tensor;
  /// Index of its first element in the full tensor.
  std::vector<std::int64_t> offset;
  /// Shape of the full tensor.
  std::vector<std::int64_t> global_shape;
};

/// A function for LoadModelOptions::rename that replaces the first matching
/// prefix of a name.
ACCELERATE_API std::function<std::string(const std::string& name)>
rename_prefixes(std::vector<std::pair<std::string, std::string>> prefixes);

/// Reads weights into a module's tensors, converted to their dtype and device;
/// meta tensors get memory on the CPU. `path` is a safetensors file, a
/// torch.save file, a TorchScript archive or one of LibTorch's torch::save(), a
/// Hugging Face index, a directory that holds one of these, a checkpoint of
/// save_state(), or a distributed checkpoint of torch. Nothing in the files is
/// executed. If the files have several names of one tensor, the last one in the
/// module's order counts, as in PyTorch. Throws a single CheckpointError with
/// everything that does not fit, values included (integers out of range,
/// complex numbers for a real tensor, different values for elements that share
/// memory in an expanded view); then nothing was loaded.
ACCELERATE_API void load_model(
    torch::nn::Module& module,
    const std::filesystem::path& path,
    const LoadModelOptions& options = {});

struct MergeWeightsOptions {
  /// False: pytorch_model.bin, a torch.save file, instead of model.safetensors.
  bool safe_serialization = true;
  /// Delete the sharded checkpoint afterwards.
  bool remove_checkpoint_dir = false;
};

/// Merges a distributed checkpoint of torch (the pytorch_model_fsdp_0 of an
/// Accelerate checkpoint, say), or a checkpoint of save_state(), into one file
/// of weights in `output_path`, a directory that is created; as
/// `accelerate-cpp merge-weights` does, a piece at a time. Call it on one rank.
/// Throws ConfigError if there is no sharded checkpoint, naming directories
/// inside that are one, or if `output_path` would be removed with it;
/// CheckpointError if it cannot be read, Error if the file cannot be written.
ACCELERATE_API void merge_fsdp_weights(
    const std::filesystem::path& checkpoint_dir,
    const std::filesystem::path& output_path,
    const MergeWeightsOptions& options = {});

/// Reads the tensors in such a file or directory to the CPU, by name: keys of
/// nested dictionaries, indices in lists and attributes of objects, joined by
/// dots. Other values, numpy arrays included, are left out. Throws
/// CheckpointError for tensors that cannot be read (sparse, quantised), and for
/// a file that holds other values only.
ACCELERATE_API std::map<std::string, at::Tensor> load_state_dict(
    const std::filesystem::path& path);

}  // namespace accelerate
