#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include "activations/autocast_state.h"
#include "activations/fingerprint.h"
#include "activations/host_copy.h"
#include "activations/tape.h"

/// What a tape knows about tensors and operators.
namespace accelerate::detail {

/// Identifies a tensor known to the tape.
struct Tape::Place {
  enum class Kind { nowhere, outside, made, by_operator, kept };
  Kind kind = Kind::nowhere;
  /// Index of the outside tensor, the made tensor, or the operator.
  std::size_t index = 0;
  /// Index among the tensors that the operator saved.
  std::size_t number = 0;
};

/// A tensor among an operator's arguments, by itself or in a list.
struct Tape::Input {
  std::size_t argument;
  std::optional<std::size_t> item;
  Place place;
  bool requires_grad;
};

/// A tensor that an operator was the first to return.
struct Tape::Output {
  std::size_t value;
  std::optional<std::size_t> item;
  std::size_t made;
};

struct Tape::Saved {
  /// Number of hooks in nodes that still exist.
  int num_hooks = 0;
  /// True if the tensor is changed in place later, so a replay must copy it.
  bool is_changed_later = false;
  std::optional<Fingerprint> fingerprint;
  at::Tensor value;
};

struct Tape::Operator {
  c10::OperatorHandle operation;
  /// The arguments, without their tensors.
  torch::jit::Stack arguments;
  std::vector<Input> inputs = {};
  std::vector<Output> outputs = {};
  std::vector<Saved> saved = {};
  bool grad_mode = true;
  AutocastState autocast = {};
  at::Generator generator = {};
  at::Tensor random_state = {};
  std::uint64_t history = 0;
  /// True if the operator threw and the program continued.
  bool has_failed = false;
  /// Made tensors that no later operator takes.
  std::vector<std::size_t> last_uses = {};
};

struct Tape::Outside {
  at::Tensor tensor;
  bool requires_grad = false;
  c10::VariableVersion counter;
  std::optional<std::uint32_t> version;
  /// Index of its memory in copies_, if the tape changes it.
  std::optional<std::size_t> copy;
  std::optional<HostCopy> on_host;
};

/// Tensors of a recomputation, undefined until an operator needs or makes them.
struct Tape::Replay {
  std::vector<at::Tensor> made;
  std::vector<at::Tensor> outside;
  /// Clones of copies_, for the operators to change.
  std::vector<at::Tensor> copies;
};

struct Tape::Known {
  using Weak =
      c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  Place place;
  Weak tensor;
};

}  // namespace accelerate::detail
