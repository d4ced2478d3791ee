#pragma once

#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
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

#include <accelerate/export.h>

/// Objects as bytes and back. objects.h documents which types can be sent.
namespace accelerate {

namespace detail {

/// False, but lets a static_assert refuse an overload only once it is used.
template <class...>
inline constexpr bool kNever = false;

/// Packs several byte strings into one, and back. `unpack_bytes` throws
/// DistributedError for bytes that pack_bytes did not produce.
ACCELERATE_API std::string pack_bytes(const std::vector<std::string>& parts);
ACCELERATE_API std::vector<std::string> unpack_bytes(std::string_view bytes);
/// These throw a DistributedError: the ranks run different programs.
[[noreturn]] ACCELERATE_API void throw_wrong_size(
    std::size_t found,
    std::size_t expected);
[[noreturn]] ACCELERATE_API void throw_wrong_alternative(
    std::uint64_t found,
    std::size_t count);

/// Writes dtype, shape, device type and elements of strided tensors of any
/// dtype, including undefined and meta tensors. Throws ConfigError for sparse
/// and quantized tensors.
ACCELERATE_API std::string tensor_to_bytes(const at::Tensor& tensor);
/// Throws DistributedError if tensor_to_bytes did not produce the bytes.
ACCELERATE_API at::Tensor tensor_from_bytes(std::string_view bytes);

template <class T>
struct IsTransferable;

template <class... Ts>
struct TypeList {};

/// The types of the values in an object with a fixed structure; void for other
/// types.
template <class T>
struct MembersOf {
  using Types = void;
};
template <class A, class B>
struct MembersOf<std::pair<A, B>> {
  using Types = TypeList<std::remove_cv_t<A>, std::remove_cv_t<B>>;
};
template <class... Ts>
struct MembersOf<std::tuple<Ts...>> {
  using Types = TypeList<Ts...>;
};
template <class... Ts>
struct MembersOf<std::variant<Ts...>> {
  using Types = TypeList<Ts...>;
};
template <class T>
struct MembersOf<std::optional<T>> {
  using Types = TypeList<T>;
};
template <class T, std::size_t n>
struct MembersOf<std::array<T, n>> {
  using Types = TypeList<T>;
};

template <class T>
inline constexpr bool kIsOptional = false;
template <class T>
inline constexpr bool kIsOptional<std::optional<T>> = true;
template <class T>
inline constexpr bool kIsVariant = false;
template <class... Ts>
inline constexpr bool kIsVariant<std::variant<Ts...>> = true;
template <class T>
inline constexpr bool kIsArray = false;
template <class T, std::size_t n>
inline constexpr bool kIsArray<std::array<T, n>> = true;
template <class T>
inline constexpr bool kIsReference = false;
template <class T>
inline constexpr bool kIsReference<std::reference_wrapper<T>> = true;

template <class T>
concept HasMembers = !std::is_void_v<typename MembersOf<T>::Types>;

template <class T>
concept JsonObject = requires(const T& json) {
  { json.dump() } -> std::convertible_to<std::string>;
  T::parse(std::string());
};

/// Pairs in a map have a constant key, which cannot be read into.
template <class Value>
struct ReadAs {
  using Type = Value;
};
template <class K, class V>
struct ReadAs<std::pair<const K, V>> {
  using Type = std::pair<K, V>;
};

/// A container that grows, such as vector, deque, list, set or map.
template <class T>
concept Container = requires(T& values, typename T::value_type&& value) {
  values.begin();
  values.end();
  values.clear();
  { values.size() } -> std::convertible_to<std::size_t>;
  requires requires { values.push_back(std::move(value)); } ||
      requires { values.insert(std::move(value)); };
};

template <class T>
concept UnorderedContainer = Container<T> && requires {
  typename T::hasher;
  typename T::key_type;
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
    !std::is_array_v<T> && !kIsReference<T> && !requires(const T& view) {
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
  } else if constexpr (HasMembers<T>) {
    return are_transferable(typename MembersOf<T>::Types());
  } else if constexpr (UnorderedContainer<T>) {
    return std::totally_ordered<typename T::key_type> &&
        IsTransferable<typename ReadAs<typename T::value_type>::Type>::value;
  } else if constexpr (Container<T>) {
    return IsTransferable<typename ReadAs<typename T::value_type>::Type>::value;
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
  if constexpr (HasMembers<T>) {
    using Members = typename MembersOf<T>::Types;
    if constexpr (!are_transferable(Members())) {
      return find_obstacle_among(Members());
    } else {
      return std::type_identity<T>();
    }
  } else if constexpr (Container<T>) {
    using Value = typename ReadAs<typename T::value_type>::Type;
    if constexpr (!IsTransferable<Value>::value) {
      return find_obstacle<Value>();
    } else {
      return std::type_identity<T>();
    }
  } else {
    return std::type_identity<T>();
  }
}

/// Names, in the compiler's message, the type that cannot be sent.
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

// Pointers to the values of an unordered container, in key order.
template <UnorderedContainer T>
auto values_in_key_order(const T& values) {
  std::vector<const typename T::value_type*> ordered;
  for (const auto& value : values) ordered.push_back(&value);
  std::stable_sort(
      ordered.begin(), ordered.end(), [](const auto* left, const auto* right) {
        if constexpr (requires { typename T::mapped_type; }) {
          return left->first < right->first;
        } else {
          return *left < *right;
        }
      });
  return ordered;
}

template <class T>
std::string values_to_bytes(const T& values) {
  if constexpr (NumbersInMemory<T>) {
    return {
        reinterpret_cast<const char*>(values.data()),
        values.size() * sizeof(typename T::value_type)};
  } else {
    std::vector<std::string> parts;
    if constexpr (UnorderedContainer<T>) {
      for (const auto* value : values_in_key_order(values))
        parts.push_back(object_to_bytes(*value));
    } else {
      for (const typename T::value_type& value : values)
        parts.push_back(object_to_bytes(value));
    }
    return pack_bytes(parts);
  }
}

template <class T>
void numbers_from_bytes(std::string_view bytes, T& values) {
  constexpr std::size_t width = sizeof(typename T::value_type);
  if constexpr (kIsArray<T>) {
    if (bytes.size() != values.size() * width)
      throw_wrong_size(bytes.size(), values.size() * width);
  } else {
    if (bytes.size() % width != 0) throw_wrong_size(bytes.size(), width);
    values.resize(bytes.size() / width);
  }
  if (!bytes.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
}

template <class T>
void values_from_bytes(std::string_view bytes, T& values) {
  if constexpr (NumbersInMemory<T>) {
    numbers_from_bytes(bytes, values);
  } else if constexpr (kIsArray<T>) {
    const std::vector<std::string> parts = unpack_bytes(bytes);
    if (parts.size() != values.size())
      throw_wrong_size(parts.size(), values.size());
    for (std::size_t i = 0; i < parts.size(); ++i)
      object_from_bytes(parts[i], values[i]);
  } else {
    values.clear();
    for (const std::string& part : unpack_bytes(bytes)) {
      typename ReadAs<typename T::value_type>::Type value{};
      object_from_bytes(part, value);
      if constexpr (requires { values.push_back(std::move(value)); }) {
        values.push_back(std::move(value));
      } else {
        values.insert(std::move(value));
      }
    }
  }
}

template <class... Ts>
std::string variant_to_bytes(const std::variant<Ts...>& object) {
  const auto index = static_cast<std::uint64_t>(object.index());
  return pack_bytes(
      {object_to_bytes(index),
       std::visit(
           [](const auto& value) { return object_to_bytes(value); }, object)});
}

template <std::size_t index, class... Ts>
void alternative_from_bytes(
    std::string_view bytes,
    std::variant<Ts...>& object) {
  std::variant_alternative_t<index, std::variant<Ts...>> value{};
  object_from_bytes(bytes, value);
  object.template emplace<index>(std::move(value));
}

template <class... Ts>
void variant_from_bytes(std::string_view bytes, std::variant<Ts...>& object) {
  const std::vector<std::string> parts = unpack_bytes(bytes);
  if (parts.size() != 2) throw_wrong_size(parts.size(), 2);
  std::uint64_t found = 0;
  object_from_bytes(parts[0], found);
  if (found >= sizeof...(Ts)) throw_wrong_alternative(found, sizeof...(Ts));
  [&]<std::size_t... index>(std::index_sequence<index...>) {
    ((index == found ? alternative_from_bytes<index>(parts[1], object)
                     : void()),
     ...);
  }(std::index_sequence_for<Ts...>());
}

template <class T>
void optional_from_bytes(std::string_view bytes, std::optional<T>& object) {
  const std::vector<std::string> parts = unpack_bytes(bytes);
  if (parts.size() > 1) throw_wrong_size(parts.size(), 1);
  object.reset();
  if (parts.empty()) return;
  T value{};
  object_from_bytes(parts[0], value);
  object = std::move(value);
}

template <class T>
void members_from_bytes(std::string_view bytes, T& object) {
  const std::vector<std::string> parts = unpack_bytes(bytes);
  constexpr std::size_t count = std::tuple_size_v<T>;
  if (parts.size() != count) throw_wrong_size(parts.size(), count);
  std::apply(
      [&](auto&... member) {
        std::size_t next = 0;
        (object_from_bytes(parts[next++], member), ...);
        static_cast<void>(next);
      },
      object);
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
  } else if constexpr (detail::kIsOptional<T>) {
    std::vector<std::string> parts;
    if (object) parts.push_back(object_to_bytes(*object));
    return detail::pack_bytes(parts);
  } else if constexpr (detail::kIsVariant<T>) {
    return detail::variant_to_bytes(object);
  } else if constexpr (detail::kIsArray<T> || detail::Container<T>) {
    return detail::values_to_bytes(object);
  } else if constexpr (detail::HasMembers<T>) {
    return std::apply(
        [](const auto&... member) {
          return detail::pack_bytes(
              std::vector<std::string>{object_to_bytes(member)...});
        },
        object);
  } else {
    return {reinterpret_cast<const char*>(&object), sizeof object};
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
  } else if constexpr (detail::kIsOptional<T>) {
    detail::optional_from_bytes(bytes, object);
  } else if constexpr (detail::kIsVariant<T>) {
    detail::variant_from_bytes(bytes, object);
  } else if constexpr (detail::kIsArray<T> || detail::Container<T>) {
    detail::values_from_bytes(bytes, object);
  } else if constexpr (detail::HasMembers<T>) {
    detail::members_from_bytes(bytes, object);
  } else {
    if (bytes.size() != sizeof object)
      detail::throw_wrong_size(bytes.size(), sizeof object);
    std::memcpy(static_cast<void*>(&object), bytes.data(), sizeof object);
  }
}

}  // namespace accelerate
