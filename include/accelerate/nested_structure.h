#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accelerate/export.h>
#include <accelerate/nested.h>
#include <accelerate/world.h>

/// The structure of nested values: functions applied to each tensor, shapes,
/// values without memory.
namespace accelerate {

struct ApplyOptions {
  /// Which tensors `function` gets; the others stay as they are. Unset: all
  /// that are defined.
  std::function<bool(const at::Tensor&)> test_type = nullptr;
  /// Throw ConfigError for numbers and strings, and for tensors that
  /// `test_type` rejects, instead of leaving them as they are.
  bool error_on_other_type = false;
};

namespace detail {
/// A meta tensor of the same dtype and shape.
ACCELERATE_API at::Tensor without_values(const at::Tensor& tensor);
/// Puts a new tensor, not initialised, in the place of a meta tensor.
ACCELERATE_API void initialize(at::Tensor& tensor, at::Device device);
// See get_shape() and find_device().
ACCELERATE_API std::vector<std::vector<std::int64_t>> shapes_of(
    const std::vector<at::Tensor>& tensors);
ACCELERATE_API std::optional<at::Device> device_of(
    const std::vector<at::Tensor>& tensors);
}  // namespace detail

/// The visitor behind recursively_apply().
class ACCELERATE_API ApplyVisitor {
 public:
  ApplyVisitor(
      std::function<at::Tensor(at::Tensor&)> function,
      const ApplyOptions& options)
      : function_(std::move(function)), options_(options) {}

  /// Replaces the tensor by the function's result.
  void operator()(at::Tensor& tensor) const;
  /// Called for a number or string. Throws ConfigError with
  /// error_on_other_type.
  void visit_other(const char* kind) const;

 private:
  std::function<at::Tensor(at::Tensor&)> function_;
  const ApplyOptions& options_;
};

/// Returns the same value with `function(tensor)`, a tensor, in place of every
/// tensor. Like all functions here, it keeps types: a tuple stays a tuple, a
/// struct a struct (honor_type in Accelerate).
template <class Function, NestedTensors T>
T recursively_apply(
    Function&& function,
    T value,
    const ApplyOptions& options = {}) {
  visit_tensors(value, ApplyVisitor(std::ref(function), options));
  return value;
}

/// The structure of a value: the same value with meta tensors, which have a
/// dtype and a shape, but no memory. Small enough for broadcast_object(), so
/// that other ranks can make room for the value with initialize_tensors().
template <NestedTensors T>
T get_data_structure(T value) {
  return recursively_apply(detail::without_values, std::move(value));
}
/// Returns the value with a new, uninitialised tensor on `device` in place of
/// every meta tensor.
template <NestedTensors T>
T initialize_tensors(T structure, at::Device device = at::kCPU) {
  visit_tensors(structure, TensorVisitor{[device](at::Tensor& tensor) {
                  detail::initialize(tensor, device);
                }});
  return structure;
}

/// The shapes of the tensors, in order; an undefined tensor has none, and is
/// left out.
template <NestedTensors T>
std::vector<std::vector<std::int64_t>> get_shape(const T& value) {
  return detail::shapes_of(tensors_of(value));
}

/// The device of the first tensor; std::nullopt if there is none.
template <NestedTensors T>
std::optional<at::Device> find_device(const T& value) {
  return detail::device_of(tensors_of(value));
}

/// Copies the tensor that one rank has to every rank, on `world.device()`. The
/// other ranks pass an undefined tensor; they need not know dtype and shape.
/// Collective. Throws ConfigError on every rank unless exactly one has it.
[[nodiscard]] ACCELERATE_API at::Tensor copy_tensor_to_devices(
    const at::Tensor& tensor,
    const World& world);

}  // namespace accelerate
