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
#include <vector>

#include <ATen/core/Tensor.h>

namespace accelerate {

namespace detail {
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

// A visitor can skip values of maps by their key, and can be told of values
// that are not tensors.
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
template <class Visitor>
void visit_other(Visitor& visitor, const char* kind) {
  if constexpr (requires { visitor.visit_other(kind); })
    visitor.visit_other(kind);
}
}  // namespace detail

/// `visit_tensors(value, visitor)` calls `visitor(tensor)` with every
/// `at::Tensor&` in a nested value, always in the same order; the visitor can
/// replace the tensor. Supported are tensors, and optional, vector, array,
/// pair, tuple, map, unordered_map and torch::data::Example of them, to any
/// depth; numbers and strings among them are skipped. To support your own type,
/// define a function in its namespace:
///
///     template <class Visitor>
///     void visit_tensors(Batch& batch, Visitor&& visitor) {
///       visitor(batch.inputs);
///       visitor(batch.labels);
///     }
///
/// An unordered_map is visited in ascending order of its keys, so that copies
/// and ranks agree on it; keys without an order do not compile.
template <class Visitor>
void visit_tensors(at::Tensor& tensor, Visitor&& visitor) {
  visitor(tensor);
}
template <class T, class Visitor>
  requires std::is_arithmetic_v<T>
void visit_tensors(T&, Visitor&& visitor) {
  detail::visit_other(visitor, "a number");
}
template <class Visitor>
void visit_tensors(std::string&, Visitor&& visitor) {
  detail::visit_other(visitor, "a string");
}

template <class T, class Visitor>
void visit_tensors(std::optional<T>& value, Visitor&& visitor);
template <class T, class A, class Visitor>
void visit_tensors(std::vector<T, A>& values, Visitor&& visitor);
template <class T, std::size_t n, class Visitor>
void visit_tensors(std::array<T, n>& values, Visitor&& visitor);
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

template <class T, class Visitor>
void visit_tensors(std::optional<T>& value, Visitor&& visitor) {
  if (value) visit_tensors(*value, visitor);
}
template <class T, class A, class Visitor>
void visit_tensors(std::vector<T, A>& values, Visitor&& visitor) {
  for (T& value : values) visit_tensors(value, visitor);
}
template <class T, std::size_t n, class Visitor>
void visit_tensors(std::array<T, n>& values, Visitor&& visitor) {
  for (T& value : values) visit_tensors(value, visitor);
}
template <class A, class B, class Visitor>
void visit_tensors(std::pair<A, B>& values, Visitor&& visitor) {
  visit_tensors(values.first, visitor);
  visit_tensors(values.second, visitor);
}
template <class... Ts, class Visitor>
void visit_tensors(std::tuple<Ts...>& values, Visitor&& visitor) {
  std::apply(
      [&](Ts&... value) { (visit_tensors(value, visitor), ...); }, values);
}
template <class K, class V, class C, class A, class Visitor>
void visit_tensors(std::map<K, V, C, A>& values, Visitor&& visitor) {
  for (auto& [key, value] : values) {
    if (detail::enters(visitor, key)) visit_tensors(value, visitor);
  }
}
template <class K, class V, class H, class E, class A, class Visitor>
void visit_tensors(
    std::unordered_map<K, V, H, E, A>& values,
    Visitor&& visitor) {
  for (auto* entry : detail::entries_by_key(values)) {
    if (detail::enters(visitor, entry->first))
      visit_tensors(entry->second, visitor);
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

// True for types with tensors to visit: a vector of strings can be visited, but
// has none. Types not listed here have their own visit_tensors.
template <class T>
struct HoldsTensors : std::bool_constant<!std::is_arithmetic_v<T>> {};
template <>
struct HoldsTensors<std::string> : std::false_type {};
template <class T>
struct HoldsTensors<std::optional<T>> : HoldsTensors<T> {};
template <class T, class A>
struct HoldsTensors<std::vector<T, A>> : HoldsTensors<T> {};
template <class T, std::size_t n>
struct HoldsTensors<std::array<T, n>> : HoldsTensors<T> {};
template <class A, class B>
struct HoldsTensors<std::pair<A, B>>
    : std::disjunction<HoldsTensors<A>, HoldsTensors<B>> {};
template <class... Ts>
struct HoldsTensors<std::tuple<Ts...>> : std::disjunction<HoldsTensors<Ts>...> {
};
template <class K, class V, class C, class A>
struct HoldsTensors<std::map<K, V, C, A>> : HoldsTensors<V> {};
template <class K, class V, class H, class E, class A>
struct HoldsTensors<std::unordered_map<K, V, H, E, A>> : HoldsTensors<V> {};
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
