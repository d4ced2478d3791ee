#include <accelerate/save.h>

#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <system_error>
#include <variant>

#include <nlohmann/json.hpp>

#include <accelerate/error.h>

#include "base/files/file_system.h"
#include "base/files/files.h"
#include "base/text/text.h"
#include "checkpoint/tensors/tensor_bytes.h"
#include "format/torch/torch_writer.h"

namespace accelerate::detail {

struct SavedList {
  std::vector<SavedValue> items;
};
struct SavedTuple {
  std::vector<SavedValue> items;
};
struct SavedDict {
  std::vector<SavedValue> keys;
  std::vector<SavedValue> values;
};

struct SavedValue::Content {
  std::variant<
      std::monostate,
      bool,
      std::int64_t,
      double,
      std::string,
      at::Tensor,
      SavedList,
      SavedTuple,
      SavedDict>
      value;
};

SavedValue::SavedValue() : SavedValue(Content{}) {}

SavedValue::SavedValue(bool value) : SavedValue(Content{value}) {}

SavedValue::SavedValue(std::int64_t value) : SavedValue(Content{value}) {}

SavedValue::SavedValue(double value) : SavedValue(Content{value}) {}

SavedValue::SavedValue(std::string value)
    : SavedValue(Content{std::move(value)}) {}

SavedValue::SavedValue(const at::Tensor& value) : SavedValue(Content{value}) {}

SavedValue::SavedValue(Content content)
    : content_(std::make_unique<Content>(std::move(content))) {}

SavedValue::SavedValue(SavedValue&& other) noexcept = default;

SavedValue& SavedValue::operator=(SavedValue&& other) noexcept = default;

SavedValue::~SavedValue() = default;

SavedValue SavedValue::list(std::vector<SavedValue> items) {
  return SavedValue(Content{SavedList{std::move(items)}});
}

SavedValue SavedValue::tuple(std::vector<SavedValue> items) {
  return SavedValue(Content{SavedTuple{std::move(items)}});
}

SavedValue SavedValue::dict(
    std::vector<SavedValue> keys,
    std::vector<SavedValue> values) {
  return SavedValue(Content{SavedDict{std::move(keys), std::move(values)}});
}

namespace {

using OrderedJson = nlohmann::ordered_json;

// Identifies the elements of a tensor: equal for tensors that view the same
// memory in the same way.
struct Elements {
  const void* data;
  std::vector<std::int64_t> sizes;
  std::vector<std::int64_t> strides;
  c10::ScalarType dtype;
  auto operator<=>(const Elements&) const = default;
};

// Numbers the memory that tensors share, from 1.
class SharedMemory {
 public:
  // Returns 0 for a tensor without elements, which shares no memory.
  std::int64_t number_of(const at::Tensor& tensor) {
    if (tensor.numel() == 0 || tensor.is_meta()) return 0;
    const Elements elements{
        memory_of(tensor),
        tensor.sizes().vec(),
        tensor.strides().vec(),
        tensor.scalar_type()};
    return known_
        .emplace(elements, static_cast<std::int64_t>(known_.size()) + 1)
        .first->second;
  }

 private:
  std::map<Elements, std::int64_t> known_;
};

// Builds the argument of write_torch_file().
class StructureValues {
 public:
  TorchValue make(const SavedValue& saved) {
    return std::visit(
        [this](const auto& value) { return from(value); },
        saved.content().value);
  }

 private:
  TorchValue from(std::monostate) { return {}; }
  TorchValue from(bool value) { return {value}; }
  TorchValue from(std::int64_t value) { return {value}; }
  TorchValue from(double value) { return {value}; }
  TorchValue from(const std::string& value) { return {value}; }
  TorchValue from(const at::Tensor& tensor) {
    if (!tensor.defined()) return {};
    TorchValue::Tensor written{to_write("a tensor of the object", tensor)};
    written.storage = memory_.number_of(tensor);
    return {std::move(written)};
  }
  TorchValue from(const SavedList& list) { return {items(list.items)}; }
  TorchValue from(const SavedTuple& tuple) {
    return {TorchValue::Tuple{items(tuple.items)}};
  }
  TorchValue from(const SavedDict& dict) {
    TorchValue::Dict made;
    for (std::size_t i = 0; i < dict.keys.size(); ++i) {
      const auto& key = dict.keys[i].content().value;
      if (!std::holds_alternative<std::string>(key) &&
          !std::holds_alternative<std::int64_t>(key)) {
        throw ConfigError(
            "[checkpoint] the keys of a map must be strings or integers for "
            "save(), but are neither");
      }
      made.add(make(dict.keys[i]), make(dict.values[i]));
    }
    return {std::move(made)};
  }
  TorchValue::List items(const std::vector<SavedValue>& values) {
    TorchValue::List list;
    for (const SavedValue& value : values) list.push_back(make(value));
    return list;
  }

  SharedMemory memory_;
};

// The tensors by name, each memory only once.
std::map<std::string, TensorToWrite> named_tensors_in(const SavedValue& saved) {
  const auto refuse = [] {
    return ConfigError(
        "[checkpoint] a safetensors file holds tensors by name and nothing "
        "else; pass a map of them to save(), or leave out safe_serialization");
  };
  const auto* const dict = std::get_if<SavedDict>(&saved.content().value);
  if (dict == nullptr) throw refuse();
  std::map<std::string, TensorToWrite> tensors;
  SharedMemory memory;
  std::int64_t num_shared = 0;
  for (std::size_t i = 0; i < dict->keys.size(); ++i) {
    const auto* const name =
        std::get_if<std::string>(&dict->keys[i].content().value);
    const auto* const tensor =
        std::get_if<at::Tensor>(&dict->values[i].content().value);
    if (name == nullptr || tensor == nullptr || !tensor->defined())
      throw refuse();
    const std::int64_t number = memory.number_of(*tensor);
    if (number != 0 && number <= num_shared) continue;
    num_shared = std::max(num_shared, number);
    tensors.emplace(*name, to_write(*name, *tensor));
  }
  return tensors;
}

SavedValue from_json_value(const OrderedJson& json) {
  switch (json.type()) {
    case OrderedJson::value_t::boolean:
      return SavedValue(json.get<bool>());
    case OrderedJson::value_t::number_integer:
      return SavedValue(json.get<std::int64_t>());
    case OrderedJson::value_t::number_unsigned:
      return saved_unsigned(json.get<std::uint64_t>());
    case OrderedJson::value_t::number_float:
      return SavedValue(json.get<double>());
    case OrderedJson::value_t::string:
      return SavedValue(json.get<std::string>());
    case OrderedJson::value_t::array: {
      std::vector<SavedValue> items;
      for (const auto& item : json) items.push_back(from_json_value(item));
      return SavedValue::list(std::move(items));
    }
    case OrderedJson::value_t::object: {
      std::vector<SavedValue> keys;
      std::vector<SavedValue> values;
      for (const auto& [key, value] : json.items()) {
        keys.emplace_back(key);
        values.push_back(from_json_value(value));
      }
      return SavedValue::dict(std::move(keys), std::move(values));
    }
    default:
      return {};
  }
}

void write(
    FileSystem& disk,
    const std::filesystem::path& path,
    const SavedValue& value,
    const SaveOptions& options) {
  if (options.safe_serialization) {
    const FileToWrite wanted{path, named_tensors_in(value), {{"format", "pt"}}};
    static_cast<void>(write_tensor_files(disk, {wanted}));
  } else {
    write_torch_file(disk, path, StructureValues().make(value));
  }
}

}  // namespace

SavedValue saved_state(const StateDict& state) {
  return saved_dict(state.values());
}

SavedValue saved_json(const std::string& text) {
  const OrderedJson json = OrderedJson::parse(text, nullptr, false);
  if (json.is_discarded())
    throw ConfigError(
        "[checkpoint] save() must get valid JSON, but got invalid JSON");
  return from_json_value(json);
}

SavedValue saved_unsigned(std::uint64_t number) {
  if (number >
      static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
    throw ConfigError(format(
        "[checkpoint] numbers must fit into 63 bits for save(), but one is {}; "
        "save it as a string",
        number));
  }
  return SavedValue(static_cast<std::int64_t>(number));
}

void save_value(
    const SavedValue& value,
    const std::filesystem::path& file,
    const SaveOptions& options) {
  const auto disk = make_file_system();
  const std::filesystem::path temporary = temporary_sibling(file);
  try {
    write(*disk, temporary, value, options);
    disk->rename(temporary, file);
  } catch (...) {
    std::error_code ignored;
    std::filesystem::remove(temporary, ignored);
    throw;
  }
  disk->sync_directory(directory_of(file));
}

}  // namespace accelerate::detail
