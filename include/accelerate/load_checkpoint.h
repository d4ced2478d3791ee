#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <c10/core/ScalarType.h>

#include <accelerate/device_map.h>
#include <accelerate/export.h>
#include <accelerate/progress.h>
#include <accelerate/world.h>

namespace torch::nn {
class Module;
}

namespace accelerate {

struct LoadCheckpointOptions {
  // Places, and the folder of weights on disk.

  /// Where each tensor goes. Empty: it stays where it is, or goes to the CPU
  /// from the meta device.
  DeviceMap device_map = {};
  /// Where weights with the place "disk" are written, in Accelerate's format
  /// (offload.h) and in the checkpoint's dtype. A folder that already holds
  /// them is not rewritten.
  std::filesystem::path offload_folder = {};
  /// If the folder has other values for weights of the checkpoint (it belongs
  /// to another model), throw an error. If false, replace them.
  bool strict_offload_folder = false;

  // Dtypes, and what is written to disk.

  /// Dtype of floating-point tensors in the module. Unset: with a device map,
  /// that of the checkpoint for the disk, else that of the module.
  std::optional<c10::ScalarType> dtype = std::nullopt;
  /// Without `dtype`, tensors on the CPU take the checkpoint's dtype as well.
  /// Unlike in Accelerate, nothing is put on disk: memory use is bounded
  /// anyway.
  bool offload_state_dict = false;
  /// Buffers with the place "disk" are written as well. Otherwise they go to
  /// the CPU.
  bool offload_buffers = false;
  /// Names of modules whose tensors stay float32 if `dtype` is float16.
  std::vector<std::string> keep_in_fp32_modules = {};

  // What must be there, and which ranks read.

  /// Every tensor of the module must be in the checkpoint, and vice versa. If
  /// false, those in only one of them are left out, with a warning about
  /// tensors that no module has.
  bool strict = false;
  /// False is rejected: a module that is not prepared has full tensors. See
  /// Accelerator::load_model() for sharded ones.
  bool full_state_dict = true;
  /// Only rank 0 of `group` reads the checkpoint, and sends the others its
  /// tensors one by one. All ranks must pass the same arguments.
  bool broadcast_from_rank0 = false;
  /// The ranks of broadcast_from_rank0, which needs it.
  std::optional<Group> group = std::nullopt;

  // How files are read.

  /// Memory-map tensors that stay on the CPU in the dtype of a safetensors
  /// file, in a module on the meta device: their pages are read on first use.
  /// If another program is about to change the file, they are copied before it
  /// can. If false, or if the kernel cannot announce changes (files of another
  /// user, on a network, or open for writing), they are read now.
  bool map_weights = true;
  /// Shows a progress bar of the bytes read, not counting mapped ones, on the
  /// ranks that read. Unset: none.
  std::optional<ProgressOptions> progress = std::nullopt;

  // Names.

  /// See LoadModelOptions.
  std::vector<std::string> skip = {};
  /// Names of tensors that the checkpoint may lack; patterns with * and ?.
  std::vector<std::string> allow_missing = {};
  /// Maps a name in the files to one in the module; see LoadModelOptions.
  std::function<std::string(const std::string& name)> rename = nullptr;
};

/// Reads weights into a module and puts each where a device map says, in one
/// pass through the files: memory use is that of the tensors that stay, plus
/// one buffer of 32 MiB (of a tensor on its way to disk, or of a row, if that
/// is larger). Accepts the files of load_model(). Tensors that stay are
/// replaced in place, so members of modules see them; those on disk are left on
/// the meta device, for dispatch_model() to run the module. A tensor with
/// several names is in memory if any of them is. Throws ConfigError for a map
/// without a place for a tensor, and for the disk without an offload folder; a
/// single CheckpointError with all mismatches; and what reading and writing
/// throw. Nothing is loaded then, with one exception: values of tensors that
/// already have memory are replaced last, after all checks, including
/// checksums, but while they are read if the buffer cannot hold them. A disk or
/// rank that fails meanwhile leaves some of them replaced, and the error says
/// so.
ACCELERATE_API void load_checkpoint_in_model(
    torch::nn::Module& model,
    const std::filesystem::path& checkpoint,
    const LoadCheckpointOptions& options = {});

}  // namespace accelerate
