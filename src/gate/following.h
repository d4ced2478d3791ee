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

/// Enables followers: tensors that follow the weights of a model that is spread
/// over several devices. They are the results of operators that
/// GatedCall::move_to() moved, and of operators on such results. An operator on
/// a follower and on tensors of other devices runs where the follower is; one
/// with followers on several devices runs where its thread's last moved
/// operator ran. Followers carry the gate's key, and have no keeper.
///
/// Gradients do not follow: they are where autograd computes them.
///
/// While an object of this class exists, tensors of any model follow. Without
/// one, followers are ordinary tensors.
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

/// Returns where an operator with followers among its arguments has to run;
/// nothing if all arguments are already there, or if it accepts tensors of
/// several devices.
std::optional<c10::Device> device_of_call(
    const c10::OperatorHandle& operation,
    std::span<const c10::IValue> arguments);

/// Moves the tensors among an operator's arguments to `device`, or, if it
/// writes to one of them, to that tensor's device. Scalars on the CPU stay, and
/// so do lengths that operators expect there. Returns whether any tensor was
/// moved. This thread's followers go to `device` from now on.
bool move_arguments(
    const c10::OperatorHandle& operation,
    std::span<c10::IValue> arguments,
    c10::Device device);

}  // namespace accelerate::detail
