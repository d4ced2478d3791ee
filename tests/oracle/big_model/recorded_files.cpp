#include "oracle/big_model/recorded_files.h"

#include <algorithm>
#include <fstream>

#include <accelerate/safetensors.h>
#include <accelerate/save.h>

#include "base/files/files.h"
#include "checkpoint/tensors/tensor_bytes.h"
#include "oracle/big_model/recorded_model.h"

namespace accelerate::oracle {

namespace fs = std::filesystem;

Json folder_json(const fs::path& folder) {
  std::vector<fs::path> paths;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.path().extension() == ".dat") paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  Json files = Json::array();
  for (const fs::path& path : paths) {
    const std::string bytes = detail::read_file(path);
    const at::Tensor tensor = at::from_blob(
        const_cast<char*>(bytes.data()),
        {static_cast<std::int64_t>(bytes.size())},
        at::kByte);
    files.push_back(
        {fs::relative(path, folder).string(), bytes.size(), digest_of(tensor)});
  }
  const fs::path index = folder / "index.json";
  return {
      {"index", fs::exists(index) ? Json(detail::read_file(index)) : Json()},
      {"files", std::move(files)}};
}

WeightList weights_of(const Json& pairs) {
  WeightList list;
  if (pairs.is_null()) return list;
  for (const Json& pair : pairs)
    list.emplace_back(pair[0], described_tensor(pair[1]));
  return list;
}

void write_safetensors(
    const fs::path& file,
    const WeightList& weights,
    const std::map<std::string, std::string>& metadata) {
  std::vector<safetensors::Declaration> declared;
  std::map<std::string, at::Tensor> tensors;
  for (const auto& [name, tensor] : weights) {
    declared.push_back(
        {name,
         *detail::file_dtype(tensor.scalar_type()),
         detail::file_shape(tensor)});
    tensors.emplace(name, tensor);
  }
  safetensors::Writer writer(file, declared, metadata);
  for (const std::string& name : writer.order())
    writer.write(detail::bytes_of(tensors.at(name)));
  writer.finish();
}

namespace recorded_files {

std::string five_digits(std::size_t number) {
  const std::string digits = std::to_string(number);
  return std::string(5 - digits.size(), '0') + digits;
}

void write_weights(
    const fs::path& file,
    const WeightList& weights,
    bool is_safetensors) {
  if (is_safetensors) {
    write_safetensors(file, weights, {{"format", "pt"}});
  } else {
    save(weights, file);
  }
}

}  // namespace recorded_files

fs::path write_checkpoint(const Json& checkpoint, const fs::path& folder) {
  using recorded_files::five_digits;
  using recorded_files::write_weights;
  fs::create_directories(folder);
  const bool is_safetensors = checkpoint.at("format") == "safetensors";
  const std::string stem = is_safetensors ? "model" : "pytorch_model";
  const std::string extension = is_safetensors ? ".safetensors" : ".bin";
  const WeightList all = weights_of(checkpoint.at("tensors"));
  const Json& shards = checkpoint.at("shards");
  const bool gives_file = checkpoint.at("given_as") == "file";
  if (shards.is_null()) {
    const fs::path file = folder / (stem + extension);
    write_weights(file, all, is_safetensors);
    return gives_file ? file : folder;
  }
  Json map = Json::object();
  for (std::size_t i = 0; i < shards.size(); ++i) {
    const std::string name = stem + "-" + five_digits(i + 1) + "-of-" +
        five_digits(shards.size()) + extension;
    WeightList part;
    for (const std::string shard_name : shards[i]) {
      const auto found =
          std::find_if(all.begin(), all.end(), [&](const auto& w) {
            return w.first == shard_name;
          });
      part.push_back(*found);
      map[shard_name] = name;
    }
    write_weights(folder / name, part, is_safetensors);
  }
  const fs::path index = folder / (stem + extension + ".index.json");
  std::ofstream(index)
      << (checkpoint.at("bare_index") == true
              ? map
              : Json{{"metadata", Json::object()}, {"weight_map", map}});
  return gives_file ? index : folder;
}

}  // namespace accelerate::oracle
