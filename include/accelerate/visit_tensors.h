#pragma once

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

#include <accelerate/detail/standard_types.h>

namespace accelerate {

namespace detail {
// A type whose parts visit_tensors() knows by itself. For others, which have a
// visit_tensors of their own, only the members that it visits are known.
template <class T>
concept VisitedByType = std::is_arithmetic_v<T> ||
    (std::is_base_of_v<at::Tensor, T> && !std::is_const_v<T>) ||
    std::is_same_v<T, std::string> || std::is_same_v<T, std::monostate> ||
    kIs<T, std::optional> || kIs<T, std::variant> || kIs<T, std::vector> ||
    kIsArray<T> || PairOrTuple<T> || kIs<T, std::map> ||
    kIs<T, std::unordered_map>;

// True for types that hold tensors: a vector of strings can be visited, but
// holds none.
template <class T>
consteval bool holds_tensors();
template <class... Ts>
consteval bool holds_tensors_among(TypeList<Ts...>) {
  return (holds_tensors<Ts>() || ...);
}
template <class T>
consteval bool holds_tensors() {
  if constexpr (
      std::is_arithmetic_v<T> || std::is_same_v<T, std::string> ||
      std::is_same_v<T, std::monostate>) {
    return false;
  } else if constexpr (!VisitedByType<T> || std::is_base_of_v<at::Tensor, T>) {
    return true;
  } else if constexpr (MapContainer<T>) {
    return holds_tensors<typename T::mapped_type>();
  } else {
    return holds_tensors_among(inner_types<T>());
  }
}

// torch::data::Example, and types like it.
template <class T>
concept ExampleType = requires {
  typename T::DataType;
  typename T::TargetType;
};

template <class T>
inline constexpr bool kHasOwnVisit = std::is_class_v<T> && !VisitedByType<T>;

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
void visit_leaf(Visitor& visitor, T& value) {
  if constexpr (requires { visitor.visit_value(value); }) {
    visitor.visit_value(value);
  } else if constexpr (requires { visitor.visit_other(""); }) {
    visitor.visit_other(std::is_arithmetic_v<T> ? "a number" : "a string");
  }
}
template <class Visitor, class T>
void visit_structure(Visitor& visitor, T& container) {
  if constexpr (requires { visitor.visit_structure(container); })
    visitor.visit_structure(container);
}
template <class Visitor, class Key, class T>
void visit_element(Visitor& visitor, const Key& key, T& element);
template <class Visitor, class T, class A>
void visit_vector(Visitor& visitor, std::vector<T, A>& values);
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
template <class T, class Visitor>
  requires detail::VisitedByType<T> || detail::ExampleType<T>
void visit_tensors(T& value, Visitor&& visitor) {
  if constexpr (detail::ExampleType<T>) {
    visit_tensors(value.data, visitor);
    // Examples with NoTarget have no such member.
    if constexpr (requires { value.target; })
      visit_tensors(value.target, visitor);
  } else if constexpr (std::is_base_of_v<at::Tensor, T>) {
    visitor(value);
  } else if constexpr (
      std::is_arithmetic_v<T> || std::is_same_v<T, std::string>) {
    detail::visit_leaf(visitor, value);
  } else if constexpr (detail::kIs<T, std::optional>) {
    detail::visit_structure(visitor, value);
    if (value) visit_tensors(*value, visitor);
  } else if constexpr (detail::kIs<T, std::variant>) {
    detail::visit_structure(visitor, value);
    std::visit([&](auto& held) { visit_tensors(held, visitor); }, value);
  } else if constexpr (detail::MapContainer<T>) {
    static_assert(
        !detail::UnorderedContainer<T> ||
            std::totally_ordered<typename T::key_type>,
        "the tensors of an unordered_map are visited in the order of its keys: "
        "give the key type operator<=>, or use a std::map with a comparator");
    detail::visit_structure(visitor, value);
    detail::for_each_value(value, [&](auto& entry) {
      if (detail::enters(visitor, entry.first))
        detail::visit_element(visitor, entry.first, entry.second);
    });
  } else if constexpr (detail::kIs<T, std::vector>) {
    detail::visit_vector(visitor, value);
  } else if constexpr (!std::is_same_v<T, std::monostate>) {
    std::size_t place = 0;
    detail::for_each_value(value, [&](auto& element) {
      detail::visit_element(visitor, place++, element);
    });
  }
}

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
template <class Visitor, class T, class A>
void visit_vector(Visitor& visitor, std::vector<T, A>& values) {
  constexpr bool is_list = !holds_tensors<T>();
  if constexpr (is_list && requires { visitor.visit_list(values); }) {
    visitor.visit_list(values);
  } else if constexpr (is_list && !requires { visitor.visit_other(""); }) {
    static_cast<void>(values);  // nothing that the visitor wants
  } else if constexpr (std::is_arithmetic_v<T>) {
    if (!values.empty()) visitor.visit_other("a number");
  } else {
    visit_structure(visitor, values);
    for (std::size_t i = 0; i < values.size(); ++i)
      visit_element(visitor, i, values[i]);
  }
}
}  // namespace detail

/// A visitor in this namespace, so that argument-dependent lookup in a user's
/// visit_tensors finds the function above.
template <class Function>
struct TensorVisitor {
  /// What is called.
  Function function;
  /// Calls it with a tensor.
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
concept NestedTensors = detail::holds_tensors<T>() &&
    requires(T& value) { visit_tensors(value, detail::AnyVisitor{}); };

/// The tensors in `value`, in order.
template <NestedTensors T>
std::vector<at::Tensor> tensors_of(T value) {
  std::vector<at::Tensor> tensors;
  visit_tensors(value, [&](at::Tensor& tensor) { tensors.push_back(tensor); });
  return tensors;
}

}  // namespace accelerate
