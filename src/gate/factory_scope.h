#pragma once

#include <cstddef>
#include <deque>
#include <span>
#include <unordered_map>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Device.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace c10 {
class OperatorHandle;
}

namespace accelerate::detail {

/// Moves a tensor to another device, visible through every handle to it. Values
/// are copied, except to and from the meta device.
void move_in_place(const at::Tensor& tensor, c10::Device device);

/// While alive, moves tensors that this thread makes on the CPU to another
/// device: either all of them as they are made, or only parameters, once they
/// are registered with a module. Scopes nest.
class FactoryScope {
 public:
  enum class Tensors { all, parameters };

  FactoryScope(c10::Device device, Tensors which);
  ~FactoryScope();
  FactoryScope(const FactoryScope&) = delete;
  FactoryScope& operator=(const FactoryScope&) = delete;

  /// This thread's innermost scope; null outside any scope.
  static FactoryScope* innermost();

  /// Called before an operator runs. Returns true if tensors made inside the
  /// operator also go to this scope's device.
  bool before(
      const c10::OperatorHandle& operation,
      std::vector<c10::IValue>& stack);
  /// Called with an operator's results.
  void after(std::span<const c10::IValue> results);

 private:
  using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl>;

  bool redirect(
      const c10::OperatorHandle& operation,
      std::vector<c10::IValue>& stack) const;
  void track(const c10::IValue& value);
  void move_arguments(const c10::IValue& value);
  /// Moves a tensor of this scope if a module has registered it as a trained
  /// parameter.
  void move_if_parameter(const c10::TensorImpl* tensor);

  c10::Device device_;
  Tensors which_;
  FactoryScope* outer_;
  /// Tensors that were made in the scope and have not been moved.
  std::unordered_map<const c10::TensorImpl*, WeakTensor> made_;
  std::size_t most_made_ = 0;
  /// The most recent ones, which are checked before the next tensor is made.
  std::deque<const c10::TensorImpl*> recent_;
  c10::impl::IncludeDispatchKeyGuard include_;
};

}  // namespace accelerate::detail
