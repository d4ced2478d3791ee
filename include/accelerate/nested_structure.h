#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <type_traits>
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
/// Throws ConfigError; `kind` is "a number", say.
[[noreturn]] ACCELERATE_API void throw_other_type(const char* kind);
/// A meta tensor of the same dtype and shape.
ACCELERATE_API at::Tensor without_values(const at::Tensor& tensor);
/// A new tensor of the same dtype and shape, not initialised.
ACCELERATE_API at::Tensor empty_like_on(
    const at::Tensor& tensor,
    at::Device device);
}  // namespace detail

/// The visitor of recursively_apply().
template <class Function>
struct ApplyVisitor {
  Function& function;
  const ApplyOptions& options;

  void operator()(at::Tensor& tensor) const {
    const bool is_accepted =
        options.test_type ? options.test_type(tensor) : tensor.defined();
    if (is_accepted) {
      tensor = function(tensor);
    } else {
      visit_other("a tensor");
    }
  }
  void visit_other(const char* kind) const {
    if (options.error_on_other_type) detail::throw_other_type(kind);
  }
};

/// Returns the same value with `function(tensor)`, a tensor, in place of every
/// tensor. Like all functions here, it keeps types: a tuple stays a tuple, a
/// struct a struct (honor_type in Accelerate).
template <class Function, NestedTensors T>
T recursively_apply(
    Function&& function,
    T value,
    const ApplyOptions& options = {}) {
  visit_tensors(
      value,
      ApplyVisitor<std::remove_reference_t<Function>>{function, options});
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
  return recursively_apply(
      [device](const at::Tensor& tensor) {
        return detail::empty_like_on(tensor, device);
      },
      std::move(structure),
      {.test_type = [](const at::Tensor& tensor) {
        return tensor.defined() && tensor.is_meta();
      }});
}

/// The shapes of the tensors, in order; an undefined tensor has none, and is
/// left out.
template <NestedTensors T>
std::vector<std::vector<std::int64_t>> get_shape(const T& value) {
  std::vector<std::vector<std::int64_t>> shapes;
  for (const at::Tensor& tensor : tensors_of(value)) {
    if (tensor.defined()) shapes.push_back(tensor.sizes().vec());
  }
  return shapes;
}

/// The device of the first tensor; std::nullopt if there is none.
template <NestedTensors T>
std::optional<at::Device> find_device(const T& value) {
  for (const at::Tensor& tensor : tensors_of(value)) {
    if (tensor.defined()) return tensor.device();
  }
  return std::nullopt;
}

/// Copies the tensor that one rank has to every rank, on `world.device()`. The
/// other ranks pass an undefined tensor; they need not know dtype and shape.
/// Collective. Throws ConfigError on every rank unless exactly one has it.
[[nodiscard]] ACCELERATE_API at::Tensor copy_tensor_to_devices(
    const at::Tensor& tensor,
    const World& world);

}  // namespace accelerate
