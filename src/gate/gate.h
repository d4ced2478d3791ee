#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

namespace c10 {
class OperatorHandle;
}

namespace accelerate::detail {

class CodedWeightKeeper;
class GateKeeper;
class OffloadKeeper;
struct GateEntry;

/// One call of an operator on tensors behind a gate, as keepers see it. Values
/// are on the dispatcher's stack, as for LibTorch's boxed kernels.
class GatedCall {
 public:
  GatedCall(const GatedCall&) = delete;
  GatedCall& operator=(const GatedCall&) = delete;

  /// Name, overload and schema of the operator.
  [[nodiscard]] const c10::OperatorHandle& operation() const;
  /// The operator's arguments in the order of its schema, defaults included;
  /// empty once there are results. A keeper may assign others of the same
  /// types.
  [[nodiscard]] std::span<c10::IValue> arguments();

  /// Makes the operator run on a device: moves the tensors among its arguments
  /// there, except undefined ones and CPU scalars. An operator that writes to a
  /// tensor runs where that tensor is. Operators that compute with the results
  /// follow them while a Following exists (gate/following.h).
  void move_to(c10::Device device);

  /// Must be called after arguments have become tensors of another device or
  /// layout, unless move_to() moved them: the operator's kernel is then chosen
  /// again.
  void forget_keys();

  /// Runs the operator, or the next keeper's call(), on the current arguments.
  void run();
  /// Whether run() would call a keeper that may compute something else
  /// (GateKeeper::may_replace), in which case the operator's gradients are not
  /// known here.
  [[nodiscard]] bool may_be_replaced_next() const;
  /// Replaces this operator with another one, for run() and for the keepers
  /// that follow: for example, a product without its bias. Both must have one
  /// result; `arguments` are all those of the new operator's schema.
  void become(
      const c10::OperatorHandle& operation,
      std::span<const c10::IValue> arguments);
  /// Uses `result` as the operator's result instead of running it. For
  /// operators with one result.
  void replace(c10::IValue result);

  /// The results of run() or replace(); a keeper may assign others.
  [[nodiscard]] std::span<c10::IValue> results();

 private:
  struct State;
  friend struct GateFallback;
  explicit GatedCall(State& state) : state_(state) {}

  State& state_;
};

/// Keeps the memory of tensors behind a gate. Called on the computing thread;
/// its exceptions propagate through the operator.
///
/// It is called above autograd and autocast, once for each operator that a
/// program or a backward calls, not for operators inside those. So autograd
/// records what call() runs in place of an operator, on the arguments that it
/// chose: moving an argument moves its gradient back; a copy computed without a
/// graph (a dequantised weight) gets no gradient, while the input gets its own.
/// An operation with another gradient must be a torch::autograd::Function.
/// Backward calls operators on saved gated tensors, and so calls the keeper
/// again, with GradMode off.
class GateKeeper {
 public:
  GateKeeper() = default;
  GateKeeper(const GateKeeper&) = delete;
  GateKeeper& operator=(const GateKeeper&) = delete;
  virtual ~GateKeeper() = default;

  /// Called before an operator takes tensor number `unit`, or a view of it.
  /// `is_filled`: the tensor has its memory.
  virtual void before_read(std::size_t /*unit*/, bool /*is_filled*/) {}

  /// Called for an operator with tensors of this keeper, after before_read()
  /// for all of them. Must run() or replace() the operator. If the arguments
  /// have several keepers, they are called in the order of the arguments, each
  /// by the run() of the previous one. The keeper's own operators bypass gates.
  virtual void call(GatedCall& call) { call.run(); }

  /// True if the memory of its tensors comes and goes with the operators that
  /// take them, so that code reads and writes them through operators only.
  [[nodiscard]] virtual bool brings_memory() const { return false; }

  /// False if call() always runs the operator unchanged.
  [[nodiscard]] virtual bool may_replace() const { return true; }

  /// Number of modules that this keeper's owner has placed on devices; 0 if the
  /// keeper has nothing to do with devices. Tensors whose keeper has placed
  /// modules stay where they are.
  [[nodiscard]] virtual std::size_t num_places() const { return 0; }
  /// This keeper, if it keeps offloaded weights; null for others.
  virtual OffloadKeeper* as_offload_keeper() { return nullptr; }
  /// This keeper, if it keeps weights as codes; null for others.
  virtual CodedWeightKeeper* as_coded_keeper() { return nullptr; }
};

/// While alive, makes operators on this thread bypass all gates: for code that
/// keeps a gate and handles the tensors behind it.
class BypassGates {
 public:
  BypassGates();
  ~BypassGates();
  BypassGates(const BypassGates&) = delete;
  BypassGates& operator=(const BypassGates&) = delete;

 private:
  bool before_;
};

/// Error messages for accessing missing memory.
struct UnavailableMessages {
  /// Used if the keeper has not filled the tensor.
  std::string while_kept;
  /// Used if the GatedTensor was destroyed while the tensor had no memory.
  std::string afterwards;
};

/// A tensor whose memory can be freed and refilled while modules, optimizers
/// and autograd hold the tensor. Operators that take it, or a view of it, first
/// call the keeper, in forward and in backward; other operators cost nothing.
/// Code that accesses missing memory without LibTorch's operators gets an error
/// with the keeper's message.
///
/// Implementation: a dispatch key that is otherwise unused, DeferredInit, is
/// added to the tensor's own TensorImpl; one boxed fallback of that key,
/// registered once per process, finds the keeper through the storage and
/// forwards the call.
class GatedTensor {
 public:
  /// `tensor` must be dense and not a view. It keeps its memory; a meta tensor
  /// is later filled with memory on `device`. `keeper` must outlive this
  /// object, and knows the tensor by number `unit`.
  GatedTensor(
      const at::Tensor& tensor,
      UnavailableMessages messages,
      GateKeeper& keeper,
      std::size_t unit,
      c10::Device device = at::kCPU);
  /// The tensor keeps its memory, if it has any.
  ~GatedTensor();
  GatedTensor(const GatedTensor&) = delete;
  GatedTensor& operator=(const GatedTensor&) = delete;

  /// Makes the tensor use `memory`, which must be dense and of the same dtype
  /// and number of elements. Nothing is copied.
  void fill(const at::Tensor& memory);
  /// Removes the memory from the tensor, and returns it.
  at::Tensor release();
  [[nodiscard]] bool is_filled() const;

  /// True if the tensor's data was replaced after it was put behind the gate
  /// (Module::to, set_data), so the keeper is no longer called.
  [[nodiscard]] bool is_bypassed() const;

  [[nodiscard]] const at::Tensor& tensor() const { return tensor_; }

  /// The number by which `keeper` knows the tensor that `value` is or is a view
  /// of; nothing if it is not that keeper's tensor.
  [[nodiscard]] static std::optional<std::size_t> unit_of(
      const c10::IValue& value,
      const GateKeeper& keeper);

 private:
  at::Tensor tensor_;
  c10::Storage storage_;
  UnavailableMessages messages_;
  std::unique_ptr<GateEntry> entry_;
};

}  // namespace accelerate::detail
