#pragma once

#include <array>
#include <concepts>
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

/// `visit_tensors(value, visitor)` calls `visitor(tensor)` with every
/// `at::Tensor&` in a nested value, always in the same order; the visitor may
/// replace the tensor. Known are tensors, and optional, vector, array, pair,
/// tuple, map, unordered_map and torch::data::Example of them, to any depth;
/// numbers and texts among them are passed over. A type of your own joins by a
/// function in its own namespace:
///
///     template <class Visitor>
///     void visit_tensors(Batch& batch, Visitor&& visitor) {
///       visitor(batch.inputs);
///       visitor(batch.labels);
///     }
///
/// An unordered_map is visited in its own order: use a map where ranks must
/// agree on it.
template <class Visitor>
void visit_tensors(at::Tensor& tensor, Visitor&& visitor) {
  visitor(tensor);
}
template <class T, class Visitor>
  requires std::is_arithmetic_v<T>
void visit_tensors(T&, Visitor&&) {}
template <class Visitor>
void visit_tensors(std::string&, Visitor&&) {}

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
void visit_tensors(std::unordered_map<K, V, H, E, A>& values, Visitor&& visitor);
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
  std::apply([&](Ts&... value) { (visit_tensors(value, visitor), ...); }, values);
}
template <class K, class V, class C, class A, class Visitor>
void visit_tensors(std::map<K, V, C, A>& values, Visitor&& visitor) {
  for (auto& [key, value] : values) visit_tensors(value, visitor);
}
template <class K, class V, class H, class E, class A, class Visitor>
void visit_tensors(std::unordered_map<K, V, H, E, A>& values, Visitor&& visitor) {
  for (auto& [key, value] : values) visit_tensors(value, visitor);
}
template <class Example, class Visitor>
  requires requires(Example& example) {
    typename Example::DataType;
    typename Example::TargetType;
  }
void visit_tensors(Example& example, Visitor&& visitor) {
  visit_tensors(example.data, visitor);
  visit_tensors(example.target, visitor);
}

namespace detail {
struct AnyVisitor {
  void operator()(at::Tensor&) const {}
};
}  // namespace detail

/// A value that visit_tensors can open.
template <class T>
concept NestedTensors =
    !std::is_arithmetic_v<T> && !std::same_as<T, std::string> &&
    requires(T& value) { visit_tensors(value, detail::AnyVisitor{}); };

/// The tensors in `value`, in order.
template <NestedTensors T>
std::vector<at::Tensor> tensors_of(T value) {
  std::vector<at::Tensor> tensors;
  visit_tensors(value, [&](at::Tensor& tensor) { tensors.push_back(tensor); });
  return tensors;
}

/// The same value with every tensor on `device`.
template <NestedTensors T>
T send_to_device(T value, at::Device device, bool non_blocking = false) {
  visit_tensors(value, [&](at::Tensor& tensor) {
    if (tensor.defined() && tensor.device() != device) tensor = tensor.to(device, non_blocking);
  });
  return value;
}

}  // namespace accelerate
