#pragma once

#include <optional>
#include <span>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Device.h>

namespace c10 {
class OperatorHandle;
}

namespace accelerate::detail {

/// Tensors that follow the weights of a model that is spread over several
/// devices: results of operators that GatedCall::move_to() moved, and of
/// operators on such results. An operator that has one of them and tensors of
/// other devices runs where the follower is; one with followers on several
/// devices runs where the last operator that was moved on its thread ran.
/// Followers carry the gate's key, and have no keeper.
///
/// Gradients do not follow: they are where autograd computes them.

/// While one exists, tensors of any model follow. Without one, followers are
/// ordinary tensors.
class Following {
 public:
  Following();
  ~Following();
  Following(const Following&) = delete;
  Following& operator=(const Following&) = delete;

  static bool is_on();
};

/// Makes a tensor, or the tensors of a list, followers, except in a backward.
void follow(const c10::IValue& value);
void stop_following(const at::Tensor& tensor);
bool is_follower(const at::Tensor& tensor);

/// Where an operator with followers among its arguments has to run, given its
/// arguments; nothing if they are all there, or it takes tensors of several
/// devices as it is.
std::optional<c10::Device> device_of_call(
    const c10::OperatorHandle& operation,
    std::span<const c10::IValue> arguments);

/// Moves the tensors among an operator's arguments to `device`, or, if it writes
/// to one of them, to where that is. Scalars on the CPU stay, and so do lengths
/// that operators want there. Returns whether any was moved. Followers of this
/// thread go to `device` from now on.
bool move_arguments(
    const c10::OperatorHandle& operation,
    std::span<c10::IValue> arguments,
    c10::Device device);

}  // namespace accelerate::detail
