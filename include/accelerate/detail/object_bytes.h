#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accelerate/detail/standard_types.h>
#include <accelerate/export.h>

/// Objects as bytes and back. objects.h documents which types can be sent.
namespace accelerate {

namespace detail {

/// False, but lets a static_assert refuse an overload only once it is used.
template <class...>
inline constexpr bool kNever = false;

/// Packs several byte strings into one, and back. unpack_bytes() throws
/// DistributedError for bytes that pack_bytes() did not produce, and for
/// another number of parts than `count`.
ACCELERATE_API std::string pack_bytes(const std::vector<std::string>& parts);
ACCELERATE_API std::vector<std::string> unpack_bytes(
    std::string_view bytes,
    std::optional<std::size_t> count = std::nullopt);
/// Unpacks at most one part.
ACCELERATE_API std::optional<std::string> unpack_optional(
    std::string_view bytes);
/// The index of an alternative, which must be below `count`, and its bytes.
ACCELERATE_API std::pair<std::size_t, std::string> read_alternative(
    std::string_view bytes,
    std::size_t count);

/// The bytes of an object in memory, and back. read_memory() and
/// number_of_items() throw DistributedError if the size does not match.
ACCELERATE_API std::string memory_bytes(const void* object, std::size_t size);
ACCELERATE_API void
read_memory(std::string_view bytes, void* object, std::size_t size);
ACCELERATE_API std::size_t number_of_items(
    std::string_view bytes,
    std::size_t width);
/// These throw a DistributedError saying that the ranks run different programs.
[[noreturn]] ACCELERATE_API void throw_wrong_size(
    std::size_t found,
    std::size_t expected);
ACCELERATE_API void require_alternative(std::uint64_t found, std::size_t count);

/// Writes dtype, shape, device type and elements of strided tensors of any
/// dtype, including undefined and meta tensors. Throws ConfigError for sparse
/// and quantized tensors.
ACCELERATE_API std::string tensor_to_bytes(const at::Tensor& tensor);
/// Throws DistributedError if tensor_to_bytes did not produce the bytes.
ACCELERATE_API at::Tensor tensor_from_bytes(std::string_view bytes);

template <class T>
struct IsTransferable;

template <class T>
concept JsonObject = requires(const T& json) {
  { json.dump() } -> std::convertible_to<std::string>;
  T::parse(std::string());
};

template <class T>
concept Number = std::is_arithmetic_v<T> || std::is_enum_v<T>;

/// Containers and arrays of numbers in contiguous memory.
template <class T>
concept NumbersInMemory =
    Number<typename T::value_type> && requires(T& values) {
      { values.data() } -> std::same_as<typename T::value_type*>;
      requires kIsArray<T> || requires { values.resize(std::size_t{}); };
    };

/// Trivially copyable, and does not obviously refer to memory elsewhere.
template <class T>
concept PlainBytes = std::is_trivially_copyable_v<T> && !std::is_pointer_v<T> &&
    !std::is_member_pointer_v<T> && !std::is_null_pointer_v<T> &&
    !std::is_array_v<T> && !kIs<T, std::reference_wrapper> &&
    !requires(const T& view) {
      view.data();
      view.size();
    };

template <class... Ts>
consteval bool are_transferable(TypeList<Ts...>) {
  return (IsTransferable<Ts>::value && ...);
}

/// Whether the library itself can write and read the type.
template <class T>
consteval bool has_standard_form() {
  if constexpr (
      std::is_same_v<T, at::Tensor> ||
      std::is_same_v<T, std::filesystem::path>) {
    return true;
  } else if constexpr (std::is_same_v<T, std::string>) {
    return false;  // has its own functions
  } else if constexpr (JsonObject<T>) {
    return true;
  } else if constexpr (UnorderedContainer<T>) {
    return std::totally_ordered<typename T::key_type> &&
        are_transferable(inner_types<T>());
  } else if constexpr (Composite<T>) {
    return are_transferable(inner_types<T>());
  } else {
    return PlainBytes<T>;
  }
}

template <class T>
concept StandardObject = has_standard_form<T>();

}  // namespace detail

inline std::string object_to_bytes(const std::string& text) { return text; }
inline void object_from_bytes(std::string_view bytes, std::string& text) {
  text = bytes;
}
template <detail::StandardObject T>
std::string object_to_bytes(const T& object);
template <detail::StandardObject T>
void object_from_bytes(std::string_view bytes, T& object);

namespace detail {

template <class T>
    struct IsTransferable
    : std::bool_constant < std::is_default_constructible_v<T>&& requires(
                               const T& object,
                               T& target) {
  { object_to_bytes(object) } -> std::convertible_to<std::string>;
  object_from_bytes(std::string_view(), target);
} > {};

// Finds the type that keeps an object from being sent: the innermost one that
// cannot be written and read.
template <class T>
auto find_obstacle();
template <class First, class... Rest>
auto find_obstacle_among(TypeList<First, Rest...>) {
  if constexpr (!IsTransferable<First>::value) {
    return find_obstacle<First>();
  } else {
    return find_obstacle_among(TypeList<Rest...>());
  }
}
template <class T>
auto find_obstacle() {
  if constexpr (Composite<T>) {
    if constexpr (!are_transferable(inner_types<T>()))
      return find_obstacle_among(inner_types<T>());
    else
      return std::type_identity<T>();
  } else {
    return std::type_identity<T>();
  }
}

/// Makes the compiler's message name the type that cannot be sent.
template <class T>
struct CannotTravel {
  static_assert(
      !std::is_pointer_v<T>,
      "a pointer means nothing on another rank: send the object itself, "
      "std::string for text");
  static_assert(
      !UnorderedContainer<T>,
      "unordered containers travel in the order of their keys: give the key "
      "type operator<=>, or use std::map or std::set");
  static_assert(
      std::is_default_constructible_v<T>,
      "an object is read into a default-constructed one: give this type a "
      "default constructor");
  static_assert(
      std::is_pointer_v<T> || UnorderedContainer<T> ||
          !std::is_default_constructible_v<T>,
      "objects of this type cannot travel between ranks: define "
      "object_to_bytes() and object_from_bytes() in its namespace "
      "(accelerate/objects.h)");
};

/// Whether T can be sent. If not, compiling fails with CannotTravel's message.
template <class T>
consteval bool must_travel() {
  if constexpr (!IsTransferable<T>::value) {
    using Obstacle = typename decltype(find_obstacle<T>())::type;
    static_cast<void>(sizeof(CannotTravel<Obstacle>));
  }
  return IsTransferable<T>::value;
}

}  // namespace detail

template <detail::StandardObject T>
std::string object_to_bytes(const T& object) {
  if constexpr (std::is_same_v<T, at::Tensor>) {
    return detail::tensor_to_bytes(object);
  } else if constexpr (std::is_same_v<T, std::filesystem::path>) {
    return object.string();
  } else if constexpr (detail::JsonObject<T>) {
    return object.dump();
  } else if constexpr (detail::NumbersInMemory<T>) {
    return detail::memory_bytes(
        object.data(), object.size() * sizeof(typename T::value_type));
  } else if constexpr (detail::Composite<T>) {
    std::vector<std::string> parts;
    const auto append = [&](const auto& part) {
      parts.push_back(object_to_bytes(part));
    };
    if constexpr (detail::kIs<T, std::variant>) {
      append(static_cast<std::uint64_t>(object.index()));
      std::visit(append, object);
    } else {
      detail::for_each_value(object, append);
    }
    return detail::pack_bytes(parts);
  } else {
    return detail::memory_bytes(&object, sizeof object);
  }
}

template <detail::StandardObject T>
void object_from_bytes(std::string_view bytes, T& object) {
  if constexpr (std::is_same_v<T, at::Tensor>) {
    object = detail::tensor_from_bytes(bytes);
  } else if constexpr (std::is_same_v<T, std::filesystem::path>) {
    object = std::string(bytes);
  } else if constexpr (detail::JsonObject<T>) {
    object = T::parse(std::string(bytes));
  } else if constexpr (detail::NumbersInMemory<T>) {
    constexpr std::size_t width = sizeof(typename T::value_type);
    if constexpr (!detail::kIsArray<T>)
      object.resize(detail::number_of_items(bytes, width));
    detail::read_memory(bytes, object.data(), object.size() * width);
  } else if constexpr (detail::kIs<T, std::variant>) {
    const auto read = detail::read_alternative(bytes, std::variant_size_v<T>);
    detail::emplace_alternative(object, read.first);
    std::visit(
        [&](auto& held) { object_from_bytes(read.second, held); }, object);
  } else if constexpr (detail::PairOrTuple<T> || detail::kIsArray<T>) {
    const std::vector<std::string> parts =
        detail::unpack_bytes(bytes, std::tuple_size_v<T>);
    std::size_t next = 0;
    detail::for_each_value(
        object, [&](auto& part) { object_from_bytes(parts[next++], part); });
  } else if constexpr (detail::kIs<T, std::optional>) {
    object.reset();
    const std::optional<std::string> value = detail::unpack_optional(bytes);
    if (value) object_from_bytes(*value, object.emplace());
  } else if constexpr (detail::Container<T>) {
    object.clear();
    for (const std::string& part : detail::unpack_bytes(bytes)) {
      detail::ReadAs<T> value{};
      object_from_bytes(part, value);
      if constexpr (requires { object.push_back(std::move(value)); }) {
        object.push_back(std::move(value));
      } else {
        object.insert(std::move(value));
      }
    }
  } else {
    detail::read_memory(bytes, &object, sizeof object);
  }
}

}  // namespace accelerate
