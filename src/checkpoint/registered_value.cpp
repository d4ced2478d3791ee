#include <accelerate/checkpoint.h>

#include <concepts>
#include <cstdint>
#include <string>
#include <utility>

#include <ATen/core/grad_mode.h>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "checkpoint/tensors/tensor_bytes.h"

namespace accelerate::detail {

namespace {

[[noreturn]] void throw_out_of_range(
    const std::string& name,
    std::int64_t saved) {
  throw CheckpointError(format(
      "[checkpoint] \"{}\" was saved as {}, which the registered variable "
      "cannot hold",
      name,
      saved));
}

[[noreturn]] void throw_too_large(const std::string& name) {
  throw ConfigError(format(
      "[checkpoint] the value of \"{}\" is above 2^63 - 1, the largest that a "
      "checkpoint holds",
      name));
}

// Assigns in place if shape and dtype are the same, otherwise a new tensor on
// the same device.
void assign_saved(at::Tensor& tensor, const at::Tensor& saved) {
  const at::NoGradGuard no_grad;
  const bool is_alike = tensor.defined() && saved.defined() &&
      tensor.sizes() == saved.sizes() &&
      tensor.scalar_type() == saved.scalar_type();
  // A view whose elements share memory may be unable to hold the values.
  if (is_alike && assign(tensor, saved)) return;
  const bool has_both = tensor.defined() && saved.defined();
  tensor = has_both ? saved.to(tensor.device()) : saved;
}

template <CheckpointValue T>
StateDict state_of_value(const std::string& name, const T& value) {
  if constexpr (std::same_as<T, float>) {
    return {{name, static_cast<double>(value)}};
  } else if constexpr (std::same_as<T, bool> || !std::integral<T>) {
    return {{name, value}};
  } else {
    if (!std::in_range<std::int64_t>(value)) throw_too_large(name);
    return {{name, static_cast<std::int64_t>(value)}};
  }
}

template <CheckpointValue T>
void load_value(const std::string& name, T& value, const StateDict& state) {
  if constexpr (std::same_as<T, at::Tensor>) {
    assign_saved(value, state.get<at::Tensor>(name));
  } else if constexpr (std::floating_point<T>) {
    value = static_cast<T>(state.get<double>(name));
  } else if constexpr (std::same_as<T, bool> || std::same_as<T, std::string>) {
    value = state.get<T>(name);
  } else {
    const auto saved = state.get<std::int64_t>(name);
    if (!std::in_range<T>(saved)) throw_out_of_range(name, saved);
    value = static_cast<T>(saved);
  }
}

}  // namespace

template <CheckpointValue T>
AnyStateful registered_state(const std::string& name, T& value) {
  return {
      [name, &value] { return state_of_value(name, value); },
      [name, &value](const StateDict& state) {
        load_value(name, value, state);
      }};
}

template AnyStateful registered_state(const std::string&, bool&);
template AnyStateful registered_state(const std::string&, signed char&);
template AnyStateful registered_state(const std::string&, unsigned char&);
template AnyStateful registered_state(const std::string&, short&);
template AnyStateful registered_state(const std::string&, unsigned short&);
template AnyStateful registered_state(const std::string&, int&);
template AnyStateful registered_state(const std::string&, unsigned int&);
template AnyStateful registered_state(const std::string&, long&);
template AnyStateful registered_state(const std::string&, unsigned long&);
template AnyStateful registered_state(const std::string&, long long&);
template AnyStateful registered_state(const std::string&, unsigned long long&);
template AnyStateful registered_state(const std::string&, float&);
template AnyStateful registered_state(const std::string&, double&);
template AnyStateful registered_state(const std::string&, std::string&);
template AnyStateful registered_state(const std::string&, at::Tensor&);

}  // namespace accelerate::detail
