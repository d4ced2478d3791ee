#include "format/weights/merge_weights.h"

#include <string>
#include <system_error>
#include <vector>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "format/checkpoint/manifest.h"
#include "format/torch/torch_distributed.h"
#include "format/weights/weights.h"

namespace accelerate::detail {

namespace {

namespace fs = std::filesystem;

// Throws unless the directory holds a sharded checkpoint. As in Accelerate, the
// error names subdirectories that do.
void require_sharded(const fs::path& directory) {
  if (!fs::is_directory(directory)) {
    throw ConfigError(
        format("[checkpoint] {} is not a directory", directory.string()));
  }
  if (is_torch_distributed(directory) || fs::exists(directory / kManifestName))
    return;
  std::string hint;
  for (const char* inside : {"pytorch_model_fsdp_0", "optimizer_0"}) {
    if (is_torch_distributed(directory / inside)) {
      hint += format(
          "{}{}", hint.empty() ? "" : " or ", (directory / inside).string());
    }
  }
  throw ConfigError(format(
      "[checkpoint] {} does not hold a sharded checkpoint: it has neither "
      ".metadata nor manifest.json{}",
      directory.string(),
      hint.empty() ? "" : format("; did you mean {}?", hint)));
}

bool lies_inside(const fs::path& inner, const fs::path& outer) {
  const fs::path relative = fs::weakly_canonical(inner).lexically_relative(
      fs::weakly_canonical(outer));
  return !relative.empty() && *relative.begin() != "..";
}

}  // namespace

std::size_t merge_weights(const MergeRequest& request) {
  require_sharded(request.checkpoint_dir);
  if (request.removes_checkpoint &&
      lies_inside(request.output, request.checkpoint_dir)) {
    throw ConfigError(format(
        "[checkpoint] the output {} is inside the checkpoint that is to be "
        "removed; choose another directory, or keep the checkpoint",
        request.output.string()));
  }
  WriteModelOptions options;
  options.format = request.format;
  // As in Accelerate, writes one file of any size.
  options.max_shard_bytes = ~std::uint64_t{0} >> 1U;
  std::error_code code;
  options.has_same_weights =
      fs::equivalent(request.output, request.checkpoint_dir, code);
  const StoredTensors tensors = open_weights(request.checkpoint_dir);
  const std::vector<NamedTensor> named = named_tensors(tensors);
  const auto disk = request.make_disk ? request.make_disk(num_bytes_of(named))
                                      : make_file_system();
  write_model(*disk, request.output, named, options);
  if (request.removes_checkpoint) fs::remove_all(request.checkpoint_dir);
  return tensors.size();
}

}  // namespace accelerate::detail
