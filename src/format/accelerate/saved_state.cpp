#include "format/accelerate/saved_state.h"

#include <cstring>
#include <limits>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "format/checkpoint/file_names.h"

namespace accelerate::detail {

namespace {

using Json = SavedState::Json;

double real(const Json& json) {
  if (json.is_number()) return json.get<double>();
  const std::string text =
      json.is_object() ? json.value("double", std::string()) : "";
  if (text == "inf") return std::numeric_limits<double>::infinity();
  if (text == "-inf") return -std::numeric_limits<double>::infinity();
  return std::numeric_limits<double>::quiet_NaN();
}

}  // namespace

SavedState::SavedState(const std::filesystem::path& file)
    : file_(file), tensors_(stored_in_safetensors(file)) {
  const safetensors::Reader reader(file);
  const auto found = reader.header().metadata.find(kStateKey);
  if (found == reader.header().metadata.end()) fail();
  entries_ = Json::parse(found->second, nullptr, false);
  if (!entries_.is_object()) fail();
}

void SavedState::fail() const {
  throw CheckpointError(format(
      "[checkpoint] {} holds no state, or one of a newer version",
      file_.string()));
}

const Json* SavedState::find(std::string_view key) const {
  const auto found = entries_.find(key);
  return found == entries_.end() ? nullptr : &*found;
}

const Json& SavedState::state_in(const Json& value) const {
  const auto found = value.find("state");
  if (found == value.end() || !found->is_object()) fail();
  return *found;
}

const Json& SavedState::states_in(const Json& value) const {
  const auto found = value.find("states");
  if (found == value.end() || !found->is_array()) fail();
  return *found;
}

TorchValue SavedState::value(const Json& value, const std::string& what) const {
  if (value.is_boolean()) return {value.get<bool>()};
  if (value.is_number_integer()) return {value.get<std::int64_t>()};
  if (value.is_number_float()) return {value.get<double>()};
  if (value.is_string()) return {value.get<std::string>()};
  if (!value.is_object() || value.size() != 1) fail();
  return tagged(value, what);
}

TorchValue SavedState::tagged(const Json& value, const std::string& what)
    const {
  const std::string& kind = value.begin().key();
  const Json& inner = value.begin().value();
  if (kind == "double") return {real(value)};
  if (kind == "state") return dict(inner, what);
  if (kind == "bytes") {
    throw ConfigError(format(
        "[checkpoint] \"{}\" must be UTF-8 to become a string of Python, but "
        "is not; save it as a tensor of bytes, or in the native layout",
        what));
  }
  if (kind == "tensor") {
    if (inner.is_null()) return {};
    const auto tensor = inner.is_string()
        ? tensors_.find(inner.get<std::string>())
        : tensors_.end();
    if (tensor == tensors_.end()) fail();
    return torch_tensor(tensor->second);
  }
  if (!inner.is_array()) fail();
  TorchValue::List list;
  for (std::size_t i = 0; i < inner.size(); ++i) {
    if (kind == "integers") {
      list.push_back({inner[i].get<std::int64_t>()});
    } else if (kind == "doubles") {
      list.push_back({real(inner[i])});
    } else if (kind == "states") {
      list.push_back(dict(inner[i], format("{}.{}", what, i)));
    } else {
      fail();
    }
  }
  return {std::move(list)};
}

TorchValue SavedState::dict(const Json& entries, const std::string& what)
    const {
  if (!entries.is_object()) fail();
  TorchValue::Dict dict;
  for (const auto& [key, item] : entries.items()) {
    dict.add({key}, value(item, format("{}.{}", what, key)));
  }
  return {std::move(dict)};
}

TorchValue scalar_tensor(float value) {
  TensorToWrite contents;
  contents.bytes.num_bytes = sizeof value;
  contents.bytes.copy = [value](std::uint64_t, std::span<std::byte> out) {
    std::memcpy(out.data(), &value, sizeof value);
  };
  return {TorchValue::Tensor{std::move(contents)}};
}

TorchValue torch_tensor(const StoredTensor& tensor, std::int64_t storage) {
  return {TorchValue::Tensor{to_write(tensor), storage}};
}

}  // namespace accelerate::detail
