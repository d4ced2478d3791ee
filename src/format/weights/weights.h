#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "base/files/file_system.h"
#include "format/tensors/model_shards.h"
#include "format/tensors/stored_tensors.h"
#include "format/tensors/tensor_writer.h"
#include "format/torch/torch_weights.h"

namespace accelerate::detail {

/// Called before the first of `num_files` is opened, and after each one.
using OnOpenedFile =
    std::function<void(std::size_t num_open, std::size_t num_files)>;

/// Opens the tensors of a model in any of these forms: a safetensors file, a
/// torch.save file of a state dict, a Hugging Face index of either, a directory
/// that holds one of these, a checkpoint of this library (its first model), or
/// a distributed checkpoint of torch. Executes nothing and reads no data yet.
/// `on_file` is called for the files of an index, `on_array` for numpy arrays in
/// files of torch.save, which are not read. Throws CheckpointError if it is none
/// of these, or several, or holds values but no tensors.
StoredTensors open_weights(
    const std::filesystem::path& path,
    const OnOpenedFile& on_file = {},
    const OnArray& on_array = {});

/// A tensor to be written under a name. Entries with equal storages, from 1,
/// are one tensor.
struct NamedTensor {
  std::string name;
  TensorToWrite tensor;
  std::int64_t storage = 0;
};

struct WriteModelOptions {
  ModelFormat format = ModelFormat::safetensors;
  std::uint64_t max_shard_bytes = 10'000'000'000;
  /// The directory already holds the same weights in another format, which are
  /// kept.
  bool has_same_weights = false;
};

/// Writes a model as Hugging Face does: one file, or several and an index, in
/// `directory`, which is created. All are written and durable before any of
/// them gets its name; then files left by an earlier save are removed, in
/// either format, so that open_weights() finds the new ones. Returns the names
/// that are in no file because they share a tensor with another name. Throws
/// ConfigError if the directory is a checkpoint.
std::vector<std::string> write_model(
    FileSystem& disk,
    const std::filesystem::path& directory,
    const std::vector<NamedTensor>& tensors,
    const WriteModelOptions& options = {});

/// Writes a single file, in the format of its extension: safetensors for
/// .safetensors, otherwise torch's.
void write_weights_file(
    FileSystem& disk,
    const std::filesystem::path& file,
    const StoredTensors& tensors);

/// The tensors in the form that write_model takes.
std::vector<NamedTensor> named_tensors(const StoredTensors& tensors);
std::uint64_t num_bytes_of(const std::vector<NamedTensor>& tensors);

}  // namespace accelerate::detail
