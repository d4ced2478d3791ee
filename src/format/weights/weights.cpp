#include "format/weights/weights.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include <nlohmann/json.hpp>

#include <accelerate/error.h>

#include "base/files/files.h"
#include "base/text/json_text.h"
#include "base/text/text.h"
#include "format/checkpoint/checkpoint_directory.h"
#include "format/checkpoint/commit.h"
#include "format/torch/torch_distributed.h"
#include "format/torch/torch_writer.h"

namespace accelerate::detail {

namespace {

using std::filesystem::path;

bool is_safetensors(const path& file) {
  return file.extension() == ".safetensors";
}

StoredTensors open_file(const path& file, const OnArray& on_array) {
  return is_safetensors(file) ? stored_in_safetensors(file)
                              : weights_in_torch_file(file, on_array);
}

// The files named in an index, not opened yet.
std::map<std::string, StoredTensors> files_of(
    const path& index,
    const nlohmann::json& map) {
  const auto fail = [&](std::string_view what) {
    throw CheckpointError(format("[checkpoint] {} {}", index.string(), what));
  };
  std::map<std::string, StoredTensors> files;
  for (const auto& where : map) {
    if (!where.is_string()) fail("is not an index of a model");
    const auto shard = where.get<std::string>();
    if (shard.find('/') != std::string::npos || shard == "..") {
      fail(format("names a file outside its directory: {}", printable(shard)));
    }
    files.try_emplace(shard);
  }
  return files;
}

StoredTensors open_index(
    const path& file,
    const OnOpenedFile& on_file,
    const OnArray& on_array) {
  const auto fail = [&](std::string_view what) {
    throw CheckpointError(format("[checkpoint] {} {}", file.string(), what));
  };
  const ParsedJson parsed = parse_json(read_file(file));
  if (!parsed.complaint.empty()) {
    fail(format("is not an index of a model: {}", parsed.complaint));
  }
  const nlohmann::json& json = parsed.value;
  if (!json.is_object()) fail("is not an index of a model");
  const auto& map = json.contains("weight_map") ? json["weight_map"] : json;
  if (!map.is_object()) fail("is not an index of a model");
  std::map<std::string, StoredTensors> files = files_of(file, map);
  std::size_t num_open = 0;
  if (on_file) on_file(num_open, files.size());
  for (auto& [shard, tensors] : files) {
    tensors = open_file(file.parent_path() / shard, on_array);
    if (on_file) on_file(++num_open, files.size());
  }
  std::map<std::pair<std::string, std::int64_t>, std::int64_t> storages;
  StoredTensors all;
  for (const auto& [name, where] : map.items()) {
    const auto shard = where.get<std::string>();
    const StoredTensors& found = files.at(shard);
    const auto tensor = found.find(name);
    if (tensor == found.end()) {
      fail(format(
          "says that {} is in {}, but it is not",
          printable(name),
          printable(shard)));
    }
    StoredTensor& stored = all.emplace(name, tensor->second).first->second;
    // Every file numbers its own storages from 1.
    if (stored.storage != 0) {
      stored.storage = storages
                           .emplace(
                               std::pair(shard, stored.storage),
                               static_cast<std::int64_t>(storages.size()) + 1)
                           .first->second;
    }
  }
  return all;
}

StoredTensors open_directory(
    const path& directory,
    const OnOpenedFile& on_file,
    const OnArray& on_array) {
  if (std::filesystem::exists(directory / kManifestName)) {
    const Manifest manifest = read_manifest(directory);
    const auto model = manifest.sections.find("model");
    if (model == manifest.sections.end()) {
      throw CheckpointError(
          format("[checkpoint] {} holds no model", directory.string()));
    }
    return stored_in_checkpoint(directory, model->second, &manifest.files);
  }
  if (is_torch_distributed(directory)) {
    return read_torch_distributed(directory).tensors;
  }
  // Accelerate's order of names, except that safetensors comes first.
  for (const char* name : {"model.safetensors", "pytorch_model.bin"}) {
    if (std::filesystem::exists(directory / name))
      return open_file(directory / name, on_array);
  }
  std::vector<path> indices;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    if (entry.path().filename().string().ends_with(".index.json")) {
      indices.push_back(entry.path());
    }
  }
  if (indices.size() == 1)
    return open_index(indices.front(), on_file, on_array);
  throw CheckpointError(format(
      "[checkpoint] {}{}",
      directory.string(),
      indices.empty() ? " holds no model: no model.safetensors, "
                        "pytorch_model.bin, index, manifest.json or .metadata"
                      : " holds several indices of models; pass one of them"));
}

// A file written under a temporary name beside its own.
struct Staged {
  path temporary;
  path target;
};

void write_file(
    FileSystem& disk,
    const path& file,
    const std::vector<const NamedTensor*>& tensors,
    ModelFormat format) {
  if (format == ModelFormat::safetensors) {
    FileToWrite wanted{file, {}, {{"format", "pt"}}};
    for (const NamedTensor* tensor : tensors) {
      wanted.tensors.emplace(tensor->name, tensor->tensor);
    }
    static_cast<void>(write_tensor_files(disk, {wanted}));
    return;
  }
  // LibTorch's torch::pickle_load() cannot read an OrderedDict.
  TorchValue::Dict dict;
  for (const NamedTensor* tensor : tensors) {
    dict.add(
        TorchValue{tensor->name},
        TorchValue{TorchValue::Tensor{tensor->tensor, tensor->storage}});
  }
  write_torch_file(disk, file, TorchValue{std::move(dict)});
}

}  // namespace

StoredTensors open_weights(
    const path& where,
    const OnOpenedFile& on_file,
    const OnArray& on_array) {
  if (std::filesystem::is_directory(where))
    return open_directory(where, on_file, on_array);
  if (!std::filesystem::exists(where)) {
    throw CheckpointError(
        format("[checkpoint] {} does not exist", where.string()));
  }
  return where.extension() == ".json" ? open_index(where, on_file, on_array)
                                      : open_file(where, on_array);
}

namespace {

// Files of a checkpoint have the same names as those of a model, and
// open_weights() reads the checkpoint.
void require_no_checkpoint(
    const path& directory,
    const WriteModelOptions& options) {
  const bool is_ours = std::filesystem::exists(directory / kManifestName);
  const bool is_other =
      is_torch_distributed(directory) && !options.has_same_weights;
  if (!is_ours && !is_other) return;
  throw ConfigError(format(
      "[checkpoint] {} is a checkpoint{}; save the model in "
      "a directory of its own",
      directory.string(),
      is_ours ? ", whose files would be overwritten" : " of torch"));
}

void remove_stale_files(
    FileSystem& disk,
    const path& directory,
    const std::set<std::string>& written,
    const WriteModelOptions& options) {
  std::vector<path> stale;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    const std::string name = entry.path().filename().string();
    for (const ModelFormat each :
         {ModelFormat::safetensors, ModelFormat::torch}) {
      const bool is_old = is_model_file(name, each) &&
          !written.contains(name) &&
          (each == options.format || !options.has_same_weights);
      if (is_old) stale.push_back(entry.path());
    }
  }
  for (const path& each : stale) disk.remove_file(each);
}

}  // namespace

std::vector<std::string> write_model(
    FileSystem& disk,
    const path& directory,
    const std::vector<NamedTensor>& tensors,
    const WriteModelOptions& options) {
  require_no_checkpoint(directory, options);
  create_directories(disk, directory);
  std::vector<ShardEntry> entries;
  std::map<std::string, const NamedTensor*> by_name;
  std::int64_t own = 0;
  for (const NamedTensor& tensor : tensors) {
    // Negative numbers mark tensors that share no storage.
    entries.push_back(
        {tensor.name,
         tensor.tensor.bytes.num_bytes,
         tensor.storage != 0 ? tensor.storage : --own});
    by_name.emplace(tensor.name, &tensor);
  }
  const ModelShards shards =
      split_model(entries, options.max_shard_bytes, options.format);
  std::vector<Staged> staged;
  std::set<std::string> written;
  const auto stage = [&](const std::string& name) {
    staged.push_back({temporary_sibling(directory / name), directory / name});
    written.insert(name);
    return staged.back().temporary;
  };
  try {
    for (const ModelShards::File& file : shards.files) {
      std::vector<const NamedTensor*> inside;
      for (const std::string& name : file.tensors) {
        inside.push_back(by_name.at(name));
      }
      write_file(disk, stage(file.name), inside, options.format);
    }
    if (shards.index) {
      const auto file = disk.create(stage(shards.index->first));
      file->write_at(0, std::as_bytes(std::span(shards.index->second)));
      file->finish();
    }
    for (const Staged& each : staged) disk.rename(each.temporary, each.target);
  } catch (...) {
    for (const Staged& each : staged) {
      std::error_code ignored;
      std::filesystem::remove(each.temporary, ignored);
    }
    throw;
  }
  disk.sync_directory(directory);
  remove_stale_files(disk, directory, written, options);
  return shards.dropped;
}

void write_weights_file(
    FileSystem& disk,
    const path& file,
    const StoredTensors& tensors) {
  const auto named = named_tensors(tensors);
  std::vector<const NamedTensor*> all;
  for (const NamedTensor& tensor : named) all.push_back(&tensor);
  const path temporary = temporary_sibling(file);
  try {
    write_file(
        disk,
        temporary,
        all,
        is_safetensors(file) ? ModelFormat::safetensors : ModelFormat::torch);
    disk.rename(temporary, file);
  } catch (...) {
    std::error_code ignored;
    std::filesystem::remove(temporary, ignored);
    throw;
  }
  disk.sync_directory(directory_of(file));
}

std::vector<NamedTensor> named_tensors(const StoredTensors& tensors) {
  using Entry = StoredTensors::value_type;
  std::vector<const Entry*> entries;
  for (const Entry& entry : tensors) entries.push_back(&entry);
  std::ranges::stable_sort(entries, [](const Entry* a, const Entry* b) {
    return a->second.place < b->second.place;
  });
  std::vector<NamedTensor> named;
  for (const Entry* entry : entries) {
    named.push_back(
        {entry->first, to_write(entry->second), entry->second.storage});
  }
  return named;
}

std::uint64_t num_bytes_of(const std::vector<NamedTensor>& tensors) {
  std::uint64_t num = 0;
  for (const NamedTensor& each : tensors) num += each.tensor.bytes.num_bytes;
  return num;
}

}  // namespace accelerate::detail
