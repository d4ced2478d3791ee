#pragma once

#include <memory>
#include <string>

#include <ATen/core/Tensor.h>

namespace accelerate::detail {

/// While alive, gradients are read on this thread for a call of the library,
/// not by the program.
class LibraryCall {
 public:
  LibraryCall();
  ~LibraryCall();
  LibraryCall(const LibraryCall&) = delete;
  LibraryCall& operator=(const LibraryCall&) = delete;
};

/// Notices direct steps of the optimizer (`sgd.step()`) where only the handle's
/// step keeps the model equal to the tensors on which the optimizer steps: full
/// parameters of ZeRO-1 and 2 are gathered after it, and master weights take
/// their gradients before it.
///
/// Implementation: an optimizer reads a tensor's gradient before it changes the
/// tensor, and LibTorch reads gradients through a virtual function. Versions of
/// tensors do not reveal steps, since torch::optim::SGD changes `data()`.
class StepWatch {
 public:
  StepWatch();
  ~StepWatch();
  StepWatch(const StepWatch&) = delete;
  StepWatch& operator=(const StepWatch&) = delete;

  /// Watches `local`, on which an optimizer steps in place of the model's
  /// `tensor`. A leaf without a graph; a second call does nothing. Outside of a
  /// LibraryCall, reading the gradient throws ConfigError while it is still the
  /// tensor's.
  void watch(
      const std::string& name,
      const at::Tensor& tensor,
      const at::Tensor& local);

  /// Throws ConfigError if the program has changed a watched tensor since it
  /// read the gradient.
  void require_steps_of_handles();
  /// Call after the library has changed watched tensors.
  void forget();

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace accelerate::detail
