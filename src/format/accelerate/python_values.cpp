#include "format/accelerate/python_values.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>
#include <utility>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "format/checkpoint/file_names.h"
#include "format/checkpoint/manifest.h"

namespace accelerate::detail {

namespace {

using Json = SavedState::Json;

struct Option {
  const char* key;
  TorchValue value;
};

// The options that a class has in Python but not in LibTorch, with the values
// that match LibTorch's behaviour.
struct PythonClass {
  const char* algorithm;
  std::vector<Option> more;
};

const std::vector<PythonClass>& python_classes() {
  static const std::vector<PythonClass> classes{
      {"AdamW",
       {{"maximize", {false}},
        {"foreach", {}},
        {"capturable", {false}},
        {"differentiable", {false}},
        {"fused", {}},
        {"decoupled_weight_decay", {true}}}},
      {"Adam",
       {{"maximize", {false}},
        {"foreach", {}},
        {"capturable", {false}},
        {"differentiable", {false}},
        {"fused", {}},
        {"decoupled_weight_decay", {false}}}},
      {"SGD",
       {{"maximize", {false}},
        {"foreach", {}},
        {"differentiable", {false}},
        {"fused", {}}}},
      {"Adagrad",
       {{"maximize", {false}},
        {"foreach", {}},
        {"differentiable", {false}},
        {"fused", {}}}},
      {"RMSprop",
       {{"maximize", {false}},
        {"foreach", {}},
        {"capturable", {false}},
        {"differentiable", {false}}}}};
  return classes;
}

const PythonClass& class_of(
    const std::string& algorithm,
    const std::string& name) {
  for (const PythonClass& each : python_classes()) {
    if (algorithm == each.algorithm) return each;
  }
  throw ConfigError(format(
      "[checkpoint] \"{}\" is {}, whose state has no counterpart in Python; "
      "the layout of Accelerate can hold AdamW, Adam, SGD, Adagrad and "
      "RMSprop. Save in the native layout",
      name,
      algorithm == "archive" ? "of a class of this program or library"
                             : format("of class {}", algorithm)));
}

// The names of a group's parameters, in order.
std::vector<std::string> names_in(
    const SavedState& state,
    const Json& parameters) {
  std::vector<std::string> names(parameters.size());
  for (const auto& [name, place] : parameters.items()) {
    if (!place.is_number_integer()) state.fail();
    const auto index = place.get<std::int64_t>();
    if (index < 0 || static_cast<std::size_t>(index) >= names.size()) {
      state.fail();
    }
    names[static_cast<std::size_t>(index)] = name;
  }
  return names;
}

class Converter {
 public:
  Converter(
      const SavedState& state,
      const Json& optimizer,
      const std::string& name,
      const StoredTensors& tensors,
      const ScheduleEntries& entries)
      : state_(state),
        optimizer_(optimizer),
        name_(name),
        tensors_(tensors),
        entries_(entries),
        class_(class_of(algorithm_of(optimizer), name)) {}

  TorchValue convert() {
    // Groups first: they number the parameters.
    TorchValue::List groups;
    for (const Json& group : state_.states_in(member(optimizer_, "groups"))) {
      groups.push_back(group_of(group, groups.size()));
    }
    TorchValue::Dict result;
    result.add({std::string("state")}, parameters());
    result.add({std::string("param_groups")}, {std::move(groups)});
    return {std::move(result)};
  }

 private:
  std::string algorithm_of(const Json& optimizer) const {
    const Json& algorithm = member(optimizer, "algorithm");
    if (!algorithm.is_string()) state_.fail();
    return algorithm.get<std::string>();
  }

  const Json& member(const Json& object, const char* key) const {
    const auto found = object.find(key);
    if (found == object.end()) state_.fail();
    return *found;
  }

  TorchValue option(const std::string& key, const Json& value) const {
    TorchValue converted = state_.value(value, format("{}.{}", name_, key));
    // Only betas is a list, which Python stores as a tuple.
    auto* const list = std::get_if<TorchValue::List>(&converted.value);
    if (list == nullptr) return converted;
    return {TorchValue::Tuple{std::move(*list)}};
  }

  TorchValue group_of(const Json& group, std::size_t index) {
    TorchValue::Dict dict;
    for (const auto& [key, value] :
         state_.state_in(member(group, "options")).items()) {
      dict.add({key}, option(key, value));
    }
    for (const Option& each : class_.more) {
      dict.add({std::string(each.key)}, each.value);
    }
    for (const auto& [key, values] : entries_) {
      const std::size_t place = values.size() == 1 ? 0 : index;
      if (place < values.size()) dict.add({key}, {values[place]});
    }
    TorchValue::List numbers;
    for (const std::string& name :
         names_in(state_, state_.state_in(member(group, "parameters")))) {
      numbers.push_back({static_cast<std::int64_t>(names_.size())});
      names_.push_back(name);
    }
    dict.add({std::string("params")}, {std::move(numbers)});
    return {std::move(dict)};
  }

  TorchValue parameters() const {
    const Json& saved = state_.state_in(member(optimizer_, "parameters"));
    TorchValue::Dict dict;
    for (std::size_t i = 0; i < names_.size(); ++i) {
      const auto found = saved.find(names_[i]);
      if (found == saved.end()) continue;
      dict.add(
          {static_cast<std::int64_t>(i)},
          parameter(state_.state_in(*found), names_[i]));
    }
    return {std::move(dict)};
  }

  TorchValue parameter(const Json& values, const std::string& name) const {
    TorchValue::Dict dict;
    for (const auto& [key, value] : values.items()) {
      if (key == "step") {
        dict.add({key}, scalar_tensor(static_cast<float>(value.get<double>())));
      } else if (const StoredTensor* tensor = tensor_in(value)) {
        dict.add({key}, torch_tensor(*tensor));
      } else {
        dict.add({key}, state_.value(value, format("{}.{}", name, key)));
      }
    }
    return {std::move(dict)};
  }

  // The tensor of the section to which a value refers; null if it refers to
  // none.
  const StoredTensor* tensor_in(const Json& value) const {
    if (!value.is_object()) return nullptr;
    const auto state = value.find("state");
    if (state == value.end() || !state->is_object()) return nullptr;
    const auto name = state->find(kTensorKey);
    if (name == state->end() || !name->is_string()) return nullptr;
    const auto found = tensors_.find(name->get<std::string>());
    if (found == tensors_.end()) state_.fail();
    return &found->second;
  }

  const SavedState& state_;
  const Json& optimizer_;
  const std::string& name_;
  const StoredTensors& tensors_;
  const ScheduleEntries& entries_;
  const PythonClass& class_;
  // Names by number.
  std::vector<std::string> names_;
};

}  // namespace

TorchValue python_optimizer(
    const SavedState& state,
    const Json& optimizer,
    const std::string& name,
    const StoredTensors& tensors,
    const ScheduleEntries& entries,
    std::vector<std::string>& left_out) {
  const auto num_masters = std::ranges::count_if(
      tensors,
      [](const auto& entry) { return entry.first.ends_with("/master"); });
  if (num_masters > 0) {
    left_out.push_back(format(
        "the fp32 master weights of {} parameters of \"{}\"; Python continues "
        "from the weights of the model",
        num_masters,
        name));
  }
  return Converter(state, optimizer, name, tensors, entries).convert();
}

namespace {

using Json = SavedState::Json;
constexpr std::int64_t kMostDevices = 1024;
using Words = std::array<std::uint32_t, 624>;

// The state of a Mersenne Twister after seeding (Matsumoto and Nishimura 2002,
// init_genrand). The words are renewed before the next number is drawn.
Words seeded(std::uint32_t seed) {
  Words words{};
  words[0] = seed;
  for (std::uint32_t i = 1; i < words.size(); ++i) {
    words[i] = 1812433253U * (words[i - 1] ^ (words[i - 1] >> 30U)) + i;
  }
  return words;
}

TorchValue::List integers(const Words& words) {
  TorchValue::List list(words.size());
  for (std::size_t i = 0; i < words.size(); ++i) {
    list[i].value = std::int64_t{words[i]};
  }
  return list;
}

// The value of random.getstate().
TorchValue python_state(std::uint32_t seed) {
  const Words words = seeded(seed);
  TorchValue::Tuple inside{integers(words)};
  inside.items.push_back({static_cast<std::int64_t>(words.size())});
  return {TorchValue::Tuple{
      {{std::int64_t{3}}, {std::move(inside)}, TorchValue{}}}};
}

// A value that numpy.random.set_state() accepts; get_state() returns an array
// instead of the list.
TorchValue numpy_state(std::uint32_t seed) {
  const Words words = seeded(seed);
  return {TorchValue::Tuple{
      {{std::string("MT19937")},
       {integers(words)},
       {static_cast<std::int64_t>(words.size())},
       {std::int64_t{0}},
       {0.0}}}};
}

std::uint64_t hash_of(const TorchValue& value) {
  const auto* const tensor = std::get_if<TorchValue::Tensor>(&value.value);
  if (tensor == nullptr) return 0;
  std::string bytes(tensor->contents.bytes.num_bytes, '\0');
  tensor->contents.bytes.copy(0, std::as_writable_bytes(std::span(bytes)));
  return checksum_of(bytes);
}

}  // namespace

TorchValue python_random_states(
    const SavedState& rank_state,
    std::int64_t step) {
  TorchValue cpu;
  TorchValue::List cuda;
  if (const Json* random = rank_state.find("random")) {
    for (const auto& [device, state] : rank_state.state_in(*random).items()) {
      if (device == "cpu") {
        cpu = rank_state.value(state, device);
      } else if (device.starts_with("cuda:")) {
        // Python's list has one state per device. A rank only knows its own,
        // which is also used for the devices before it.
        const auto index = parse_int(std::string_view(device).substr(5));
        if (!index || *index >= kMostDevices) rank_state.fail();
        const auto place = static_cast<std::size_t>(*index);
        cuda.assign(place + 1, rank_state.value(state, device));
      }
    }
  }
  const std::uint64_t hash = hash_of(cpu);
  TorchValue::Dict dict;
  dict.add({std::string("step")}, {step});
  dict.add(
      {std::string("random_state")},
      python_state(static_cast<std::uint32_t>(hash)));
  dict.add(
      {std::string("numpy_random_seed")},
      numpy_state(static_cast<std::uint32_t>(hash >> 32U)));
  dict.add({std::string("torch_manual_seed")}, std::move(cpu));
  if (!cuda.empty()) {
    dict.add({std::string("torch_cuda_manual_seed")}, {std::move(cuda)});
  }
  return {std::move(dict)};
}

}  // namespace accelerate::detail
