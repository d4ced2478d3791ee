#include <cstdio>

#include <accelerate/error.h>
#include <accelerate/safetensors.h>

#include "base/files/files.h"
#include "oracle/oracle.h"

namespace accelerate::oracle {

namespace topic_safetensors_bad {

std::string fnv1a64(std::span<const std::byte> bytes) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const std::byte byte : bytes) {
    hash = (hash ^ std::to_integer<std::uint64_t>(byte)) * 0x100000001b3;
  }
  char text[17];
  std::snprintf(
      text, sizeof text, "%016llx", static_cast<unsigned long long>(hash));
  return text;
}

Json describe(const std::string& path) {
  const safetensors::Reader reader(path);
  Json tensors = Json::array();
  for (const auto& [name, info] : reader.header().tensors) {
    tensors.push_back(Json::array(
        {name,
         {{"dtype", safetensors::name_of(info.dtype)},
          {"shape", info.shape},
          {"bytes", info.num_bytes()},
          {"fnv1a64", fnv1a64(reader.bytes(name))}}}));
  }
  return {{"verdict", "ok"}, {"tensors", std::move(tensors)}};
}

Json describe_names(const std::string& path) {
  const safetensors::Reader reader(path);
  Json names = Json::array();
  for (const auto& [name, info] : reader.header().tensors) {
    names.push_back(name);
  }
  const safetensors::Header& header = reader.header();
  return {
      {"verdict", "ok"},
      {"names", std::move(names)},
      {"metadata", header.has_metadata ? Json(header.metadata) : Json()}};
}

}  // namespace topic_safetensors_bad

Json run_safetensors_bad(const Json& input) {
  using namespace topic_safetensors_bad;
  const std::string path = input.at("file");
  Json outcome;
  for (const auto& [key, look] :
       {std::pair("from_bytes", &describe),
        std::pair("from_file", &describe_names)}) {
    try {
      outcome[key] = look(path);
    } catch (const CheckpointError&) {
      outcome[key] = {{"verdict", "error"}};
    }
  }
  return outcome;
}

}  // namespace accelerate::oracle
