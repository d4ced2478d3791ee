#include <algorithm>

#include "base/text/sizes.h"
#include "format/tensors/model_shards.h"
#include "oracle/oracle.h"

namespace accelerate::oracle {

namespace topic_shard_checkpoint {

std::uint64_t bytes_of(const Json& tensor) {
  const std::string dtype = tensor.at("dtype");
  std::uint64_t bytes =
      dtype.starts_with("float8") ? 1 : c10::elementSize(dtype_named(dtype));
  for (const Json& size : tensor.at("shape"))
    bytes *= size.get<std::uint64_t>();
  return bytes;
}

}  // namespace topic_shard_checkpoint

Json run_shard_checkpoint(const Json& input) {
  using namespace topic_shard_checkpoint;
  std::vector<detail::ShardEntry> tensors;
  for (const Json& tensor : input.at("tensors")) {
    tensors.push_back(
        {tensor.at("name"), bytes_of(tensor), tensor.at("storage")});
  }
  const Json& limit = input.at("max_shard_size");
  const auto max_bytes = limit.is_string()
      ? static_cast<std::uint64_t>(detail::parse_size(limit.get<std::string>()))
      : limit.get<std::uint64_t>();
  const auto shards = detail::split_model(
      tensors,
      max_bytes,
      input.at("safe_serialization") ? detail::ModelFormat::safetensors
                                     : detail::ModelFormat::torch);
  Json files = Json::array();
  for (const auto& file : shards.files) {
    files.push_back({file.name, file.tensors});
  }
  Json index;
  if (shards.index) {
    index = {{"file", shards.index->first}, {"text", shards.index->second}};
  }
  return {
      {"files", std::move(files)},
      {"dropped", shards.dropped},
      {"index", std::move(index)}};
}

}  // namespace accelerate::oracle
