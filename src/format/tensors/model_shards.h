#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace accelerate::detail {

/// One tensor of a model, in the order of its state dict.
struct ShardEntry {
  std::string name;
  std::uint64_t bytes = 0;
  /// Entries with equal numbers are the same tensor.
  std::int64_t storage = 0;
};

/// How a model is split into files.
struct ModelShards {
  struct File {
    std::string name;
    std::vector<std::string> tensors;
  };
  std::vector<File> files;
  /// Names that are in no file, because they share a tensor with one that is.
  std::vector<std::string> dropped;
  /// Counts each tensor once.
  std::uint64_t total_bytes = 0;
  /// Name and text of the index; nothing if there is only one file.
  std::optional<std::pair<std::string, std::string>> index;
};

enum class ModelFormat { safetensors, torch };

/// Distributes tensors over files of at most `max_bytes` each, except for
/// tensors that are larger by themselves, as the Hugging Face hub library does:
/// in order, a new file when the next tensor does not fit; a tensor that is too
/// large gets its own file before the one then open. Safetensors files hold a
/// shared tensor once; torch files hold all its names, in one file.
ModelShards split_model(
    const std::vector<ShardEntry>& tensors,
    std::uint64_t max_bytes,
    ModelFormat format);

/// Whether this is the name of a shard or an index of a model in this format,
/// which an earlier save may have left.
bool is_model_file(const std::string& name, ModelFormat format);

}  // namespace accelerate::detail
