#pragma once

#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include <ATen/core/Tensor.h>

namespace accelerate {

namespace detail {
// True for types with tensors to visit: a vector of strings can be visited, but
// has none. Types not listed here have their own visit_tensors.
template <class T>
struct HoldsTensors : std::bool_constant<!std::is_arithmetic_v<T>> {
  using Own = T;
};
template <>
struct HoldsTensors<at::Tensor> : std::true_type {};
template <>
struct HoldsTensors<std::string> : std::false_type {};
template <>
struct HoldsTensors<std::monostate> : std::false_type {};
template <class T>
struct HoldsTensors<std::optional<T>> : std::bool_constant<HoldsTensors<T>{}> {
};
template <class T, class A>
struct HoldsTensors<std::vector<T, A>> : std::bool_constant<HoldsTensors<T>{}> {
};
template <class T, std::size_t n>
struct HoldsTensors<std::array<T, n>> : std::bool_constant<HoldsTensors<T>{}> {
};
template <class A, class B>
struct HoldsTensors<std::pair<A, B>>
    : std::bool_constant<HoldsTensors<A>{} || HoldsTensors<B>{}> {};
template <class... Ts>
struct HoldsTensors<std::tuple<Ts...>>
    : std::bool_constant<(HoldsTensors<Ts>{} || ...)> {};
template <class... Ts>
struct HoldsTensors<std::variant<Ts...>>
    : std::bool_constant<(HoldsTensors<Ts>{} || ...)> {};
template <class K, class V, class C, class A>
struct HoldsTensors<std::map<K, V, C, A>>
    : std::bool_constant<HoldsTensors<V>{}> {};
template <class K, class V, class H, class E, class A>
struct HoldsTensors<std::unordered_map<K, V, H, E, A>>
    : std::bool_constant<HoldsTensors<V>{}> {};

// A type with a visit_tensors of its own, of which only the members that it
// visits are known.
template <class T>
inline constexpr bool kHasOwnVisit =
    std::is_class_v<T> && requires { typename HoldsTensors<T>::Own; };

// The order of an unordered map depends on how it was filled, so copies and
// other ranks may have a different one.
template <class Map>
auto entries_by_key(Map& values) {
  static_assert(
      std::totally_ordered<typename Map::key_type>,
      "the tensors of an unordered_map are visited in the order of its keys: "
      "give the key type operator<=>, or use a std::map with a comparator");
  std::vector<decltype(&*values.begin())> entries;
  entries.reserve(values.size());
  for (auto& entry : values) entries.push_back(&entry);
  std::sort(entries.begin(), entries.end(), [](auto* left, auto* right) {
    return left->first < right->first;
  });
  return entries;
}

// Besides operator()(at::Tensor&), a visitor may have
// * enters(key): whether to visit the value of a map;
// * visit_list(values), for a vector without tensors, which are one row each;
// * visit_value(value), for a number or string that is not in such a list;
// * visit_other(kind), "a number" or "a string", without its value;
// * visit_structure(container), before the elements of a vector, map, optional
//   or variant are visited;
// * enter_place(key) and leave_place(element), around each element.
template <class Visitor, class Key>
bool enters(Visitor& visitor, const Key& key) {
  if constexpr (requires {
                  { visitor.enters(key) } -> std::convertible_to<bool>;
                }) {
    return visitor.enters(key);
  } else {
    return true;
  }
}
template <class Visitor, class T>
void visit_value(Visitor& visitor, T& value, const char* kind) {
  if constexpr (requires { visitor.visit_value(value); }) {
    visitor.visit_value(value);
  } else if constexpr (requires { visitor.visit_other(kind); }) {
    visitor.visit_other(kind);
  }
}
template <class Visitor, class T>
void visit_structure(Visitor& visitor, T& container) {
  if constexpr (requires { visitor.visit_structure(container); })
    visitor.visit_structure(container);
}
template <class Visitor, class Key, class T>
void visit_element(Visitor& visitor, const Key& key, T& element);
}  // namespace detail

/// `visit_tensors(value, visitor)` calls `visitor(tensor)` with every
/// `at::Tensor&` in a nested value, always in the same order; the visitor can
/// replace the tensor. Supported are tensors, and optional, variant, vector,
/// array, pair, tuple, map, unordered_map and torch::data::Example of them, to
/// any depth, with numbers and strings among them. To support your own type,
/// define a function in its namespace that visits all its members:
///
///     template <class Visitor>
///     void visit_tensors(Batch& batch, Visitor&& visitor) {
///       visitor(batch.inputs);
///       visitor(batch.labels);
///       accelerate::visit_tensors(batch.texts, visitor);
///     }
///
/// Functions that cut, join or send a value treat a vector without tensors as
/// rows, one per sample, and other numbers and strings as constants; they know
/// nothing of members that are not visited.
///
/// An unordered_map is visited in ascending order of its keys, so that copies
/// and ranks agree on it; keys without an order do not compile.
template <class Visitor>
void visit_tensors(at::Tensor& tensor, Visitor&& visitor) {
  visitor(tensor);
}
template <class T, class Visitor>
  requires std::is_arithmetic_v<T>
void visit_tensors(T& number, Visitor&& visitor) {
  detail::visit_value(visitor, number, "a number");
}
template <class Visitor>
void visit_tensors(std::string& text, Visitor&& visitor) {
  detail::visit_value(visitor, text, "a string");
}
template <class Visitor>
void visit_tensors(std::monostate&, Visitor&&) {}

template <class T, class Visitor>
void visit_tensors(std::optional<T>& value, Visitor&& visitor);
template <class T, class A, class Visitor>
void visit_tensors(std::vector<T, A>& values, Visitor&& visitor);
template <class T, std::size_t n, class Visitor>
void visit_tensors(std::array<T, n>& values, Visitor&& visitor);
template <class... Ts, class Visitor>
void visit_tensors(std::variant<Ts...>& value, Visitor&& visitor);
template <class A, class B, class Visitor>
void visit_tensors(std::pair<A, B>& values, Visitor&& visitor);
template <class... Ts, class Visitor>
void visit_tensors(std::tuple<Ts...>& values, Visitor&& visitor);
template <class K, class V, class C, class A, class Visitor>
void visit_tensors(std::map<K, V, C, A>& values, Visitor&& visitor);
template <class K, class V, class H, class E, class A, class Visitor>
void visit_tensors(
    std::unordered_map<K, V, H, E, A>& values,
    Visitor&& visitor);
template <class Example, class Visitor>
  requires requires(Example& example) {
    typename Example::DataType;
    typename Example::TargetType;
  }
void visit_tensors(Example& example, Visitor&& visitor);

namespace detail {
template <class Visitor, class Key, class T>
void visit_element(Visitor& visitor, const Key& key, T& element) {
  if constexpr (requires { visitor.enter_place(key); }) {
    visitor.enter_place(key);
    visit_tensors(element, visitor);
    visitor.leave_place(element);
  } else {
    visit_tensors(element, visitor);
  }
}
}  // namespace detail

template <class T, class Visitor>
void visit_tensors(std::optional<T>& value, Visitor&& visitor) {
  detail::visit_structure(visitor, value);
  if (value) visit_tensors(*value, visitor);
}
template <class T, class A, class Visitor>
void visit_tensors(std::vector<T, A>& values, Visitor&& visitor) {
  constexpr bool is_list = !detail::HoldsTensors<T>::value;
  if constexpr (is_list && requires { visitor.visit_list(values); }) {
    visitor.visit_list(values);
  } else if constexpr (is_list && !requires { visitor.visit_other(""); }) {
    static_cast<void>(values);  // nothing that the visitor wants
  } else if constexpr (std::is_arithmetic_v<T>) {
    if (!values.empty()) visitor.visit_other("a number");
  } else {
    detail::visit_structure(visitor, values);
    for (std::size_t i = 0; i < values.size(); ++i)
      detail::visit_element(visitor, i, values[i]);
  }
}
template <class T, std::size_t n, class Visitor>
void visit_tensors(std::array<T, n>& values, Visitor&& visitor) {
  for (std::size_t i = 0; i < n; ++i)
    detail::visit_element(visitor, i, values[i]);
}
template <class... Ts, class Visitor>
void visit_tensors(std::variant<Ts...>& value, Visitor&& visitor) {
  detail::visit_structure(visitor, value);
  std::visit([&](auto& held) { visit_tensors(held, visitor); }, value);
}
template <class A, class B, class Visitor>
void visit_tensors(std::pair<A, B>& values, Visitor&& visitor) {
  detail::visit_element(visitor, std::size_t{0}, values.first);
  detail::visit_element(visitor, std::size_t{1}, values.second);
}
template <class... Ts, class Visitor>
void visit_tensors(std::tuple<Ts...>& values, Visitor&& visitor) {
  std::apply(
      [&](Ts&... value) {
        std::size_t next = 0;
        (detail::visit_element(visitor, next++, value), ...);
        static_cast<void>(next);
      },
      values);
}
template <class K, class V, class C, class A, class Visitor>
void visit_tensors(std::map<K, V, C, A>& values, Visitor&& visitor) {
  detail::visit_structure(visitor, values);
  for (auto& [key, value] : values) {
    if (detail::enters(visitor, key))
      detail::visit_element(visitor, key, value);
  }
}
template <class K, class V, class H, class E, class A, class Visitor>
void visit_tensors(
    std::unordered_map<K, V, H, E, A>& values,
    Visitor&& visitor) {
  detail::visit_structure(visitor, values);
  for (auto* entry : detail::entries_by_key(values)) {
    if (detail::enters(visitor, entry->first))
      detail::visit_element(visitor, entry->first, entry->second);
  }
}
template <class Example, class Visitor>
  requires requires(Example& example) {
    typename Example::DataType;
    typename Example::TargetType;
  }
void visit_tensors(Example& example, Visitor&& visitor) {
  visit_tensors(example.data, visitor);
  // Examples with NoTarget have no such member.
  if constexpr (requires { example.target; })
    visit_tensors(example.target, visitor);
}

/// A visitor in this namespace, so that argument-dependent lookup in a user's
/// visit_tensors finds the overloads above.
template <class Function>
struct TensorVisitor {
  Function function;
  void operator()(at::Tensor& tensor) { function(tensor); }
};
template <class Function>
TensorVisitor(Function) -> TensorVisitor<Function>;

namespace detail {
struct AnyVisitor {
  void operator()(at::Tensor&) const {}
};
}  // namespace detail

/// A value with tensors that visit_tensors can visit.
template <class T>
concept NestedTensors = detail::HoldsTensors<T>::value &&
    requires(T& value) { visit_tensors(value, detail::AnyVisitor{}); };

/// The tensors in `value`, in order.
template <NestedTensors T>
std::vector<at::Tensor> tensors_of(T value) {
  std::vector<at::Tensor> tensors;
  visit_tensors(value, [&](at::Tensor& tensor) { tensors.push_back(tensor); });
  return tensors;
}

}  // namespace accelerate
