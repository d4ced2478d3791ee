#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/files/file_system.h"
#include "format/tensors/model_shards.h"
#include "format/tensors/stored_tensors.h"
#include "format/tensors/tensor_writer.h"

namespace accelerate::detail {

/// Called before the first of `num_files` is opened, and after each.
using OnOpenedFile =
    std::function<void(std::size_t num_open, std::size_t num_files)>;

/// The tensors of a model, in any of these forms: a safetensors file, a
/// torch.save file of a state dict, a Hugging Face index of either, a directory
/// that holds one of these, a checkpoint of this library (its first model), or
/// a distributed checkpoint of torch. Nothing is executed, and no data is read
/// yet. `on_file` is told about the files of an index. Throws CheckpointError if
/// it is none of them, or several.
StoredTensors open_weights(
    const std::filesystem::path& path,
    const OnOpenedFile& on_file = {});

/// The tensors in the dictionaries of a torch.save file, names joined by dots.
StoredTensors stored_in_torch_file(const std::filesystem::path& file);

/// A tensor to be written under a name. Equal storages, from 1, are one tensor.
struct NamedTensor {
  std::string name;
  TensorToWrite tensor;
  std::int64_t storage = 0;
};

struct WriteModelOptions {
  ModelFormat format = ModelFormat::safetensors;
  std::uint64_t max_shard_bytes = 10'000'000'000;
};

/// Writes a model as Hugging Face does: one file, or several and an index, in
/// `directory`, which is created. All are written and durable before any gets
/// its name; then files that an earlier save left are removed. Returns the
/// names that share a tensor with another and are in no file.
std::vector<std::string> write_model(
    FileSystem& disk,
    const std::filesystem::path& directory,
    const std::vector<NamedTensor>& tensors,
    const WriteModelOptions& options = {});

/// Writes a single file of this name, in the format of its extension:
/// .safetensors, else torch's.
void write_weights_file(
    FileSystem& disk,
    const std::filesystem::path& file,
    const StoredTensors& tensors);

/// The tensors in the form that write_model takes.
std::vector<NamedTensor> named_tensors(const StoredTensors& tensors);
std::uint64_t num_bytes_of(const std::vector<NamedTensor>& tensors);

}  // namespace accelerate::detail
