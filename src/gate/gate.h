#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <accelerate/export.h>

namespace c10 {
class OperatorHandle;
}

namespace accelerate::detail {

class GateKeeper;

/// One call of an operator on tensors behind a gate, while a keeper is asked.
/// Values are on the dispatcher's stack, as LibTorch's boxed kernels have them.
class GatedCall {
 public:
  GatedCall(const GatedCall&) = delete;
  GatedCall& operator=(const GatedCall&) = delete;

  /// Name, overload and schema of the operator.
  [[nodiscard]] const c10::OperatorHandle& operation() const;
  /// The operator's arguments in the order of its schema, defaults included,
  /// until there are results. A keeper may assign others of the same types.
  [[nodiscard]] std::span<c10::IValue> arguments();

  /// Runs the operator, or the next keeper's call(), on the arguments as they
  /// are now.
  void run();
  /// Takes `result` for what the operator returns, which is not run. For
  /// operators with one result.
  void replace(c10::IValue result);

  /// What run() or replace() left; a keeper may assign others.
  [[nodiscard]] std::span<c10::IValue> results();

 private:
  struct State;
  friend struct GateFallback;
  explicit GatedCall(State& state) : state_(state) {}

  State& state_;
};

/// Keeps the memory of tensors behind a gate. It is asked on the thread that
/// computes; what it throws leaves the operator.
///
/// It is asked above autograd and autocast, once for each operator that a
/// program or a backward calls, not for those inside of it. So autograd records
/// what call() runs in an operator's place, on the arguments that it chose:
/// moving an argument moves its gradient back, a copy that was computed without
/// a graph (a dequantised weight) gets no gradient and hands on that of the
/// input. A product with another gradient is a torch::autograd::Function.
/// Backwards call operators on tensors that were saved behind a gate, and so
/// ask the keeper again, with GradMode off.
class GateKeeper {
 public:
  GateKeeper() = default;
  GateKeeper(const GateKeeper&) = delete;
  GateKeeper& operator=(const GateKeeper&) = delete;
  virtual ~GateKeeper() = default;

  /// An operator is about to take tensor number `unit`, or a view of it;
  /// `is_filled`: it has its memory.
  virtual void before_read(std::size_t /*unit*/, bool /*is_filled*/) {}

  /// An operator was called with tensors of this keeper, for all of which
  /// before_read() has been called. Must run() or replace() it. Where several
  /// keepers' tensors meet, they are asked in the order of the arguments, each
  /// by the run() of the one before. The keeper's own operators pass all gates.
  virtual void call(GatedCall& call) { call.run(); }
};

/// While it lives, operators on this thread pass all gates unasked: for code
/// that keeps a gate and handles the tensors behind it.
class BypassGates {
 public:
  BypassGates();
  ~BypassGates();
  BypassGates(const BypassGates&) = delete;
  BypassGates& operator=(const BypassGates&) = delete;

 private:
  bool before_;
};

/// Texts of the errors that reaching for missing memory throws.
struct UnavailableMessages {
  /// The keeper has not filled the tensor.
  std::string while_kept;
  /// The GatedTensor went while the tensor had no memory.
  std::string afterwards;
};

/// A tensor whose memory comes and goes while modules, optimizers and autograd
/// hold on to it. Operators that take it, or a view of it, first ask the
/// keeper, in forward and in backward; other operators pay nothing. Code that
/// reaches around LibTorch's operators while there is no memory gets an error
/// with the keeper's message.
///
/// How: a dispatch key that nobody else uses, DeferredInit, is added to the
/// tensor's own TensorImpl; one boxed fallback of that key, registered once in
/// a process, finds the keeper through the storage and passes the call on.
class GatedTensor {
 public:
  /// `tensor` is dense and not a view. It has its memory still, or, if it is a
  /// meta tensor, gets some on `device` later. `keeper` outlives this object,
  /// and knows the tensor as number `unit`.
  GatedTensor(
      const at::Tensor& tensor,
      UnavailableMessages messages,
      GateKeeper& keeper,
      std::size_t unit,
      c10::Device device = at::kCPU);
  /// The tensor keeps what memory it has, and stays without if it has none.
  ~GatedTensor();
  GatedTensor(const GatedTensor&) = delete;
  GatedTensor& operator=(const GatedTensor&) = delete;

  /// From now on the tensor's values are those of `memory`: dense, and of its
  /// type and number of elements. Nothing is copied.
  void fill(const at::Tensor& memory);
  /// Lets go of the memory, and returns it.
  at::Tensor release();
  [[nodiscard]] bool is_filled() const;

  /// True if the tensor's data was replaced after it was put behind the gate
  /// (Module::to, set_data), so that the keeper is not asked any more.
  [[nodiscard]] bool is_bypassed() const;

  [[nodiscard]] const at::Tensor& tensor() const { return tensor_; }

  /// The number under which `keeper` knows what `value` is, or is a view of;
  /// nothing if it is not a tensor of that keeper.
  [[nodiscard]] static std::optional<std::size_t> unit_of(
      const c10::IValue& value,
      const GateKeeper& keeper);

 private:
  struct Entry;
  friend struct GateFallback;

  at::Tensor tensor_;
  c10::Storage storage_;
  UnavailableMessages messages_;
  std::unique_ptr<Entry> entry_;
};

}  // namespace accelerate::detail
