#include "format/tensors/model_shards.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>

namespace accelerate::detail {

namespace {

struct ShardFileNames {
  std::string stem;
  std::string ending;

  explicit ShardFileNames(ModelFormat file_format)
      : stem(file_format == ModelFormat::torch ? "pytorch_model" : "model"),
        ending(file_format == ModelFormat::torch ? ".bin" : ".safetensors") {}
  [[nodiscard]] std::string file(std::size_t number, std::size_t count) const {
    if (count <= 1) return stem + ending;
    char suffix[32];
    std::snprintf(suffix, sizeof suffix, "-%05zu-of-%05zu", number, count);
    return stem + suffix + ending;
  }
  [[nodiscard]] std::string index() const {
    return stem + ending + ".index.json";
  }
};

std::string index_text(const ModelShards& shards) {
  nlohmann::json files = nlohmann::json::object();
  for (const ModelShards::File& file : shards.files) {
    for (const std::string& name : file.tensors) files[name] = file.name;
  }
  const nlohmann::json index{
      {"metadata", {{"total_size", shards.total_bytes}}},
      {"weight_map", std::move(files)}};
  return index.dump(2, ' ', /*ensure_ascii=*/true) + "\n";
}

}  // namespace

ModelShards split_model(
    const std::vector<ShardEntry>& tensors,
    std::uint64_t max_bytes,
    ModelFormat file_format) {
  ModelShards shards;
  // The names of each storage, beginning with the first.
  std::map<std::int64_t, std::vector<std::string>> names;
  std::vector<std::vector<std::int64_t>> files;
  std::vector<std::int64_t> open;
  std::uint64_t open_bytes = 0;
  for (const ShardEntry& tensor : tensors) {
    std::vector<std::string>& of_storage = names[tensor.storage];
    of_storage.push_back(tensor.name);
    if (of_storage.size() > 1) {
      if (file_format == ModelFormat::safetensors) {
        shards.dropped.push_back(tensor.name);
        of_storage.pop_back();
      }
      continue;
    }
    shards.total_bytes += tensor.bytes;
    if (tensor.bytes > max_bytes) {
      files.push_back({tensor.storage});
      continue;
    }
    if (tensor.bytes > max_bytes - open_bytes) {
      files.push_back(std::exchange(open, {}));
      open_bytes = 0;
    }
    open.push_back(tensor.storage);
    open_bytes += tensor.bytes;
  }
  if (!open.empty() || files.empty()) files.push_back(std::move(open));

  const ShardFileNames file_names(file_format);
  for (std::size_t i = 0; i < files.size(); ++i) {
    ModelShards::File file{file_names.file(i + 1, files.size()), {}};
    for (const std::int64_t storage : files[i]) {
      file.tensors.push_back(names[storage].front());
    }
    for (const std::int64_t storage : files[i]) {
      const std::vector<std::string>& all = names[storage];
      file.tensors.insert(file.tensors.end(), all.begin() + 1, all.end());
    }
    shards.files.push_back(std::move(file));
  }
  if (files.size() > 1) {
    shards.index = {file_names.index(), index_text(shards)};
  }
  return shards;
}

bool is_model_file(const std::string& name, ModelFormat file_format) {
  const ShardFileNames names(file_format);
  if (name == names.file(1, 1) || name == names.index()) return true;
  // The pattern of the names that names.file() returns, for any numbers.
  const std::string pattern = names.stem + "-#####-of-#####" + names.ending;
  const auto fits = [](char found, char wanted) {
    return wanted == '#' ? found >= '0' && found <= '9' : found == wanted;
  };
  return std::ranges::equal(name, pattern, fits);
}

}  // namespace accelerate::detail
