#pragma once

#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

/// The structure of the standard library's types, shared by the functions that
/// visit, send, save and nest values.
namespace accelerate::detail {

/// Whether T is an instance of a class template: kIs<T, std::optional>.
template <class T, template <class...> class Template>
inline constexpr bool kIs = false;
template <template <class...> class Template, class... Ts>
inline constexpr bool kIs<Template<Ts...>, Template> = true;

template <class T>
inline constexpr bool kIsArray = false;
template <class T, std::size_t n>
inline constexpr bool kIsArray<std::array<T, n>> = true;

template <class T>
concept PairOrTuple = kIs<T, std::pair> || kIs<T, std::tuple>;

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
concept MapContainer = Container<T> && requires { typename T::mapped_type; };
template <class T>
concept UnorderedContainer = Container<T> && requires {
  typename T::hasher;
  typename T::key_type;
};

/// A value that consists of values of other types.
template <class T>
concept Composite = kIs<T, std::optional> || kIs<T, std::variant> ||
    PairOrTuple<T> || kIsArray<T> || Container<T>;

template <class... Ts>
struct TypeList {};
// Only their types are used.
template <template <class...> class Template, class... Ts>
TypeList<std::remove_cv_t<Ts>...> type_arguments(const Template<Ts...>*);
template <class V>
V without_constant_key(const V*);
template <class K, class V>
std::pair<K, V> without_constant_key(const std::pair<const K, V>*);

/// The type of a container's values, without the constant key of a map's, which
/// cannot be read into.
template <class T>
using ReadAs = decltype(without_constant_key(
    static_cast<const typename T::value_type*>(nullptr)));

/// The types of the values of a Composite.
template <class T>
consteval auto inner_types() {
  if constexpr (kIsArray<T> || Container<T>) {
    return TypeList<ReadAs<T>>();
  } else {
    return decltype(type_arguments(static_cast<const T*>(nullptr)))();
  }
}

/// Pointers to the values of an unordered container, in key order: the
/// container's own order depends on how it was filled, so copies and other
/// ranks may have a different one.
template <class T>
auto values_in_key_order(T& values) {
  std::vector<decltype(&*values.begin())> ordered;
  for (auto& value : values) ordered.push_back(&value);
  std::stable_sort(ordered.begin(), ordered.end(), [](auto* left, auto* right) {
    if constexpr (requires { typename T::mapped_type; }) {
      return left->first < right->first;
    } else {
      return *left < *right;
    }
  });
  return ordered;
}

/// Calls `function` with each value of an optional, pair, tuple, array or
/// container, in order.
template <class T, class Function>
void for_each_value(T& object, Function&& function) {
  using Object = std::remove_const_t<T>;
  if constexpr (kIs<Object, std::optional>) {
    if (object) function(*object);
  } else if constexpr (PairOrTuple<Object>) {
    std::apply([&](auto&... value) { (function(value), ...); }, object);
  } else if constexpr (UnorderedContainer<Object>) {
    for (auto* value : values_in_key_order<T>(object)) function(*value);
  } else {
    for (auto&& value : object) function(value);
  }
}

/// Gives a variant a default-constructed alternative.
template <class... Ts>
void emplace_alternative(std::variant<Ts...>& object, std::size_t alternative) {
  [&]<std::size_t... index>(std::index_sequence<index...>) {
    ((index == alternative ? static_cast<void>(object.template emplace<index>())
                           : void()),
     ...);
  }(std::index_sequence_for<Ts...>());
}

}  // namespace accelerate::detail
