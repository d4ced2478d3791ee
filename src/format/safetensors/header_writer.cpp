#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include <accelerate/error.h>
#include <accelerate/safetensors.h>

#include "base/limits.h"
#include "base/text/text.h"
#include "format/safetensors/header_format.h"

namespace accelerate::safetensors {

using detail::format;
using detail::printable;

Header lay_out(
    const std::vector<Declaration>& tensors,
    std::map<std::string, std::string> metadata) {
  std::vector<const Declaration*> order;
  for (const Declaration& tensor : tensors) order.push_back(&tensor);
  // The reference writer's order: dtypes by width.
  std::ranges::sort(order, [](const Declaration* a, const Declaration* b) {
    return a->dtype != b->dtype ? a->dtype > b->dtype : a->name < b->name;
  });
  Header header;
  header.has_metadata = !metadata.empty();
  header.metadata = std::move(metadata);
  std::uint64_t at = 0;
  for (const Declaration* tensor : order) {
    const auto bytes = bytes_of(tensor->dtype, tensor->shape);
    const auto refuse = [&](const std::string& what) {
      throw CheckpointError(format(
          "[safetensors] '{}' cannot be written: {}",
          printable(tensor->name),
          what));
    };
    if (!bytes || *bytes > std::numeric_limits<std::int64_t>::max() - at) {
      refuse("its shape takes too many bytes, or not a whole number");
    }
    if (tensor->name == kMetadata) refuse("the name is the format's own");
    if (tensor->shape.size() > detail::kMostDimensions) {
      refuse(format(
          "its shape has more than {} dimensions", detail::kMostDimensions));
    }
    const bool is_new =
        header.tensors
            .emplace(
                tensor->name,
                TensorInfo{tensor->dtype, tensor->shape, at, at + *bytes})
            .second;
    if (!is_new) {
      throw CheckpointError(format(
          "[safetensors] '{}' must be written once, but was declared twice",
          printable(tensor->name)));
    }
    at += *bytes;
  }
  header.data_begin = header_bytes(header).size();
  return header;
}

std::string header_bytes(const Header& header) {
  // Names in data order, which the library's JSON objects do not preserve.
  using nlohmann::json;
  std::string text = "{";
  if (header.has_metadata) {
    text += format("{}:{}", json(kMetadata), json(header.metadata));
  }
  for (const std::string& name : names_in_order(header)) {
    const TensorInfo& info = header.tensors.at(name);
    text += format(
        "{}{}:{{\"dtype\":\"{}\",\"shape\":{},\"data_offsets\":[{},{}]}}",
        text.size() > 1 ? "," : "",
        json(name),
        name_of(info.dtype),
        json(info.shape),
        info.begin,
        info.end);
  }
  text += "}";
  constexpr std::size_t kAlignment = 8;
  text.resize((text.size() + kAlignment - 1) / kAlignment * kAlignment, ' ');
  if (text.size() > kMostHeaderBytes) {
    throw CheckpointError(format(
        "[safetensors] a header of {} bytes cannot be written; "
        "readers take at most {}",
        text.size(),
        kMostHeaderBytes));
  }
  std::string bytes;
  for (std::size_t i = 0; i < kLengthBytes; ++i) {
    bytes += static_cast<char>(text.size() >> (8 * i) & 0xff);
  }
  return bytes + text;
}

}  // namespace accelerate::safetensors
