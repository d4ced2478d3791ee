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

#include <accelerate/export.h>
#include <accelerate/fully_sharded.h>

namespace torch::nn {
class Module;
}

namespace accelerate {

/// A model's tensors by name, in the order of PyTorch's state_dict(): of each
/// module its parameters, then its buffers, then its children's. Tensors with
/// several names appear under each.
using WeightList = std::vector<std::pair<std::string, at::Tensor>>;

/// The module's own tensors, not copies. Undefined ones are left out.
ACCELERATE_API WeightList get_state_dict(const torch::nn::Module& module);

/// A number of bytes, or a text that says one: "10GB" (powers of 1000), "5GiB"
/// (of 1024).
class ACCELERATE_API ByteSize {
 public:
  /// Throws ConfigError for a number below 0.
  ByteSize(std::int64_t bytes);
  ByteSize(int bytes) : ByteSize(std::int64_t{bytes}) {}
  /// Throws ConfigError for a text that is no size.
  ByteSize(const std::string& text);
  ByteSize(const char* text) : ByteSize(std::string(text)) {}
  [[nodiscard]] std::int64_t bytes() const { return bytes_; }

 private:
  std::int64_t bytes_;
};

struct SaveModelOptions {
  /// Of each file, if no tensor is larger alone.
  ByteSize max_shard_size = "10GB";
  /// False: pytorch_model.bin, a file of torch.save, in place of safetensors.
  bool safe_serialization = true;
};

/// Writes a model's weights as Hugging Face does: model.safetensors, or, beyond
/// max_shard_size, model-00001-of-0000N.safetensors and an index. Tied weights
/// are written once. All files are durable before any gets its name; what an
/// earlier save left is removed. Creates `folder`. Returns the names that are in
/// no file because they share a tensor that is. Throws ConfigError for a size
/// that is none and for tensors without values, Error if something cannot be
/// written.
ACCELERATE_API std::vector<std::string> save_model(
    const torch::nn::Module& module,
    const std::filesystem::path& folder,
    const SaveModelOptions& options = {});

struct LoadModelOptions {
  /// Every tensor of the module must be in the files, and every tensor in the
  /// files in the module. False: what is only in one of them is left alone;
  /// shapes must match still.
  bool strict = true;
  /// Names that are left as they are, and that may be missing; patterns with *
  /// and ?.
  std::vector<std::string> skip = {};
  std::vector<std::string> allow_missing = {};
  /// From a name in the files to one in the module, where they differ, as those
  /// of a Python and a C++ program may; empty for a tensor that is to be left
  /// out. See rename_prefixes().
  std::function<std::string(const std::string& name)> rename = nullptr;
  /// Only rank 0 reads, and gives the others theirs: where the files are on its
  /// machine alone, or the disk is slower than the network. Of
  /// Accelerator::load_model() only. Unset: if the model's sharding settings
  /// say cpu_ram_efficient_loading.
  std::optional<bool> broadcast_from_rank0 = std::nullopt;
};

/// What Accelerator::get_state_dict() gives of a model that is split.
struct StateDictOptions {
  /// full_state_dict: whole tensors, copies on the CPU. Else this rank's own
  /// parts, not copies; WeightPart says where they belong.
  StateDictType type = StateDictType::full_state_dict;
  /// Whole tensors on rank 0 only, and nothing elsewhere.
  bool rank0_only = true;
};

/// Some rows of a tensor that is split over ranks, or a whole one.
struct WeightPart {
  std::string name;
  at::Tensor tensor;
  /// Where its first element is in the whole tensor.
  std::vector<std::int64_t> offset;
  std::vector<std::int64_t> global_shape;
};

/// For LoadModelOptions::rename: of the first prefix that a name has, the
/// replacement is put in its place.
ACCELERATE_API std::function<std::string(const std::string& name)>
rename_prefixes(std::vector<std::pair<std::string, std::string>> prefixes);

/// Reads weights into a module's tensors, converted to their dtype and device;
/// meta tensors get memory on the CPU.
/// `path` is a safetensors file, a torch.save file, a Hugging Face index of
/// either, a folder that holds one of these, a checkpoint of save_state(), or a
/// distributed checkpoint of torch. Nothing in the files is executed. Throws one
/// CheckpointError with everything that does not fit; nothing was loaded then.
ACCELERATE_API void load_model(
    torch::nn::Module& module,
    const std::filesystem::path& path,
    const LoadModelOptions& options = {});

/// Accelerate's name for it, which by default is not strict.
ACCELERATE_API void load_checkpoint_in_model(
    torch::nn::Module& module,
    const std::filesystem::path& path,
    const LoadModelOptions& options = {.strict = false});

/// The tensors in such a file or folder, read to the CPU, by name.
ACCELERATE_API std::map<std::string, at::Tensor> load_state_dict(
    const std::filesystem::path& path);

}  // namespace accelerate
