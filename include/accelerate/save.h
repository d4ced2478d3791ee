#pragma once

#include <concepts>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accelerate/detail/handles.h>
#include <accelerate/detail/object_bytes.h>
#include <accelerate/detail/standard_types.h>
#include <accelerate/export.h>
#include <accelerate/state_dict.h>

namespace accelerate {

struct SaveOptions {
  /// Write the safetensors format instead of torch.save's. The object must then
  /// be tensors by name.
  bool safe_serialization = false;
};

namespace detail {

/// A value as Python sees it in a file.
class ACCELERATE_API SavedValue {
 public:
  struct Content;

  SavedValue();  ///< None
  explicit SavedValue(bool value);
  explicit SavedValue(std::int64_t value);
  explicit SavedValue(double value);
  explicit SavedValue(std::string value);
  explicit SavedValue(const at::Tensor& value);
  explicit SavedValue(Content content);
  SavedValue(SavedValue&& other) noexcept;
  SavedValue& operator=(SavedValue&& other) noexcept;
  ~SavedValue();

  static SavedValue list(std::vector<SavedValue> items);
  static SavedValue tuple(std::vector<SavedValue> items);
  /// As many keys as values.
  static SavedValue dict(
      std::vector<SavedValue> keys,
      std::vector<SavedValue> values);

  [[nodiscard]] const Content& content() const { return *content_; }

 private:
  OwnedPtr<Content> content_;
};

ACCELERATE_API SavedValue saved_state(const StateDict& state);
/// Throws ConfigError for text that is not JSON.
ACCELERATE_API SavedValue saved_json(const std::string& text);
/// Throws ConfigError for a number above the largest that torch.save knows.
ACCELERATE_API SavedValue saved_unsigned(std::uint64_t number);
ACCELERATE_API void save_value(
    const SavedValue& value,
    const std::filesystem::path& file,
    const SaveOptions& options);

template <class T>
inline constexpr bool kIsNamedTensors = false;
template <class A>
inline constexpr bool
    kIsNamedTensors<std::vector<std::pair<std::string, at::Tensor>, A>> = true;

template <class T>
SavedValue saved_value(const T& object);

template <class T>
SavedValue saved_dict(const T& entries) {
  std::vector<SavedValue> keys;
  std::vector<SavedValue> values;
  for_each_value(entries, [&](const auto& entry) {
    keys.push_back(saved_value(entry.first));
    values.push_back(saved_value(entry.second));
  });
  return SavedValue::dict(std::move(keys), std::move(values));
}
template <class T>
std::vector<SavedValue> saved_items(const T& values) {
  std::vector<SavedValue> saved;
  for_each_value(
      values, [&](const auto& value) { saved.push_back(saved_value(value)); });
  return saved;
}
template <class T>
SavedValue saved_value(const T& object) {
  if constexpr (std::is_same_v<T, at::Tensor> || std::is_same_v<T, bool>) {
    return SavedValue(object);
  } else if constexpr (JsonObject<T>) {
    return saved_json(object.dump());
  } else if constexpr (std::is_unsigned_v<T>) {
    return saved_unsigned(object);
  } else if constexpr (std::is_enum_v<T> || std::is_integral_v<T>) {
    return SavedValue(static_cast<std::int64_t>(object));
  } else if constexpr (std::is_floating_point_v<T>) {
    return SavedValue(static_cast<double>(object));
  } else if constexpr (std::is_convertible_v<const T&, std::string_view>) {
    return SavedValue(std::string(std::string_view(object)));
  } else if constexpr (std::is_same_v<T, std::filesystem::path>) {
    return SavedValue(object.string());
  } else if constexpr (std::is_same_v<T, StateDict>) {
    return saved_state(object);
  } else if constexpr (std::is_same_v<T, std::monostate>) {
    return {};
  } else if constexpr (kIs<T, std::optional>) {
    return object ? saved_value(*object) : SavedValue();
  } else if constexpr (kIs<T, std::variant>) {
    return std::visit(
        [](const auto& value) { return saved_value(value); }, object);
  } else if constexpr (kIsNamedTensors<T> || requires {
                         typename T::mapped_type;
                       }) {
    return saved_dict(object);
  } else if constexpr (kIsArray<T> || Container<T>) {
    return SavedValue::list(saved_items(object));
  } else if constexpr (PairOrTuple<T>) {
    return SavedValue::tuple(saved_items(object));
  } else {
    static_assert(
        kNever<T>,
        "save() writes tensors, numbers, strings, StateDict, JSON and standard "
        "containers of these; give your type a state_dict() and save that");
    return {};
  }
}

}  // namespace detail

/// Writes an object to a file that Python can read: `torch.load(file,
/// weights_only=True)`, or with `safe_serialization` any safetensors reader.
///
/// * Tensors, numbers, strings, StateDict, JSON (types with dump() and a static
///   parse()) and standard containers of these. Maps, StateDict, JSON objects
///   and lists of names and tensors (get_state_dict()) become dicts, whose keys
///   must be strings or integers; pairs and tuples become tuples, other
///   containers lists, an empty optional None.
/// * Tensors are written contiguous, from any device; those that share memory
///   are written once and stay shared. With `safe_serialization`, which can
///   hold tensors by name only, the first name keeps such a tensor and the
///   others are left out, as Accelerate does.
///
/// The file appears under its name, replacing another, once it is complete and
/// durable. Call it on the ranks that are to write: each writes its own object
/// to the path it passes. Throws ConfigError for what the format cannot hold,
/// Error if the file cannot be written.
template <class T>
void save(
    const T& object,
    const std::filesystem::path& file,
    const SaveOptions& options = {}) {
  detail::save_value(detail::saved_value(object), file, options);
}

}  // namespace accelerate
