#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accelerate/export.h>

namespace accelerate {

/// Named values from which an object can be restored: numbers, strings, lists,
/// tensors, and nested state dicts. Tensors are shared, not copied.
///
/// A class with `StateDict state_dict() const` and `void load_state_dict(const
/// StateDict&)` can be saved and restored.
class ACCELERATE_API StateDict {
 public:
  /// What a key can have.
  using Value = std::variant<
      bool,
      std::int64_t,
      double,
      std::string,
      std::vector<std::int64_t>,
      std::vector<double>,
      at::Tensor,
      StateDict,
      std::vector<StateDict>>;

  // Not inline, since a program would otherwise compile the map and the variant
  // in each of its files.
  StateDict();
  StateDict(std::initializer_list<std::pair<const std::string, Value>> values);
  StateDict(const StateDict& other);
  StateDict(StateDict&& other) noexcept;
  StateDict& operator=(const StateDict& other);
  StateDict& operator=(StateDict&& other) noexcept;
  ~StateDict();

  /// Adds a value, or replaces that of the key.
  void set(std::string key, Value value);
  /// Whether there is a value of this key.
  [[nodiscard]] bool contains(std::string_view key) const;
  /// Whether there are no values.
  [[nodiscard]] bool empty() const { return values_.empty(); }
  /// All values by key, in alphabetical order.
  [[nodiscard]] const std::map<std::string, Value, std::less<>>& values()
      const& {
    return values_;
  }
  /// Returned by value from a temporary, so that a loop can run over it.
  [[nodiscard]] std::map<std::string, Value, std::less<>> values() &&;

  /// The value, whose type must be exactly T; an integer also serves as double.
  /// Throws CheckpointError naming the key if it is missing or of another type.
  template <class T>
  [[nodiscard]] T get(std::string_view key) const {
    const Value& value = at(key);
    if (const T* typed = std::get_if<T>(&value)) return *typed;
    if constexpr (std::is_same_v<T, double>) {
      if (const auto* integer = std::get_if<std::int64_t>(&value)) {
        return static_cast<double>(*integer);
      }
    }
    throw_wrong_type(key);
  }

 private:
  [[nodiscard]] const Value& at(std::string_view key) const;
  [[noreturn]] static void throw_wrong_type(std::string_view key);

  std::map<std::string, Value, std::less<>> values_;
};

/// Returns `destination` with the entries of `source`, which take precedence;
/// state dicts, or maps, that both have under a key are merged in the same way.
[[nodiscard]] ACCELERATE_API StateDict
merge_dicts(const StateDict& source, StateDict destination);
/// Merges nested maps likewise.
template <class Map>
  requires requires { typename Map::mapped_type; }
[[nodiscard]] Map merge_dicts(const Map& source, Map destination) {
  for (const auto& entry : source) {
    const auto found = destination.find(entry.first);
    if (found == destination.end()) {
      destination.emplace(entry.first, entry.second);
    } else if constexpr (requires {
                           merge_dicts(entry.second, std::move(found->second));
                         }) {
      found->second = merge_dicts(entry.second, std::move(found->second));
    } else {
      found->second = entry.second;
    }
  }
  return destination;
}

/// Serialises a state dict, so that ranks can send it (objects.h).
[[nodiscard]] ACCELERATE_API std::string object_to_bytes(
    const StateDict& state);
/// The inverse of object_to_bytes().
ACCELERATE_API void object_from_bytes(std::string_view bytes, StateDict& state);

}  // namespace accelerate
