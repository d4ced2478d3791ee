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

/// Moves a tensor to another device, seen by every handle to it. Its values go
/// along, except to and from the meta device.
void move_in_place(const at::Tensor& tensor, c10::Device device);

/// While it lives, tensors that this thread makes on the CPU go to another
/// device: every one as it is made, or, once they are registered with a module,
/// parameters only. Scopes nest.
class FactoryScope {
 public:
  enum class Tensors { all, parameters };

  FactoryScope(c10::Device device, Tensors which);
  ~FactoryScope();
  FactoryScope(const FactoryScope&) = delete;
  FactoryScope& operator=(const FactoryScope&) = delete;

  /// This thread's; null outside of all scopes.
  static FactoryScope* innermost();

  /// Called before an operator runs. Returns true if tensors that are made
  /// inside of the operator go to this scope's device, too.
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
  /// Moves a tensor of this scope if a module has registered it as a parameter
  /// that is trained.
  void move_if_parameter(const c10::TensorImpl* tensor);

  c10::Device device_;
  Tensors which_;
  FactoryScope* outer_;
  /// Tensors that were made in the scope and are not moved.
  std::unordered_map<const c10::TensorImpl*, WeakTensor> made_;
  std::size_t most_made_ = 0;
  /// The last ones, which are looked at before the next tensor is made.
  std::deque<const c10::TensorImpl*> recent_;
  c10::impl::IncludeDispatchKeyGuard include_;
};

}  // namespace accelerate::detail
