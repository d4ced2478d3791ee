#include <accelerate/state_dict.h>

#include <utility>

#include <accelerate/error.h>
#include <accelerate/objects.h>

#include "base/text/text.h"

namespace accelerate {

StateDict::StateDict() = default;
StateDict::StateDict(
    std::initializer_list<std::pair<const std::string, Value>> values)
    : values_(values) {}
StateDict::StateDict(const StateDict& other) = default;
StateDict::StateDict(StateDict&& other) noexcept = default;
StateDict& StateDict::operator=(const StateDict& other) = default;
StateDict& StateDict::operator=(StateDict&& other) noexcept = default;
StateDict::~StateDict() = default;

void StateDict::set(std::string key, Value value) {
  values_.insert_or_assign(std::move(key), std::move(value));
}

bool StateDict::contains(std::string_view key) const {
  return values_.find(key) != values_.end();
}

std::map<std::string, StateDict::Value, std::less<>> StateDict::values() && {
  return std::move(values_);
}

const StateDict::Value& StateDict::at(std::string_view key) const {
  const auto found = values_.find(key);
  if (found == values_.end()) {
    throw CheckpointError(detail::format(
        "[checkpoint] the state has no \"{}\"; it was saved by something else",
        key));
  }
  return found->second;
}

void StateDict::throw_wrong_type(std::string_view key) {
  throw CheckpointError(detail::format(
      "[checkpoint] \"{}\" of the state is of another type than expected; it "
      "was saved by something else",
      key));
}

StateDict merge_dicts(const StateDict& source, StateDict destination) {
  for (const auto& [key, value] : source.values()) {
    const auto* const nested = std::get_if<StateDict>(&value);
    const auto found = destination.values().find(key);
    const StateDict* const inner = found == destination.values().end()
        ? nullptr
        : std::get_if<StateDict>(&found->second);
    if (nested != nullptr && inner != nullptr) {
      destination.set(key, merge_dicts(*nested, *inner));
    } else {
      destination.set(key, value);
    }
  }
  return destination;
}

std::string object_to_bytes(const StateDict& state) {
  return object_to_bytes(state.values());
}

void object_from_bytes(std::string_view bytes, StateDict& state) {
  std::map<std::string, StateDict::Value, std::less<>> values;
  object_from_bytes(bytes, values);
  StateDict read;
  for (auto& [key, value] : values) read.set(key, std::move(value));
  state = std::move(read);
}

}  // namespace accelerate
