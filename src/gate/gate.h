#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include <ATen/core/Tensor.h>

#include <accelerate/export.h>

namespace accelerate::detail {

/// Is told, on the thread that computes, that an operator is about to read
/// weights. What it throws leaves the operator.
class GateKeeper {
 public:
  GateKeeper() = default;
  GateKeeper(const GateKeeper&) = delete;
  GateKeeper& operator=(const GateKeeper&) = delete;
  virtual ~GateKeeper() = default;

  /// `unit`: what the tensor was put behind the gate as; `is_filled`: it has its
  /// memory.
  virtual void before_read(std::size_t unit, bool is_filled) = 0;
};

/// While it lives, operators on this thread pass all gates unasked: for who
/// keeps one, and handles the tensors behind it.
class ACCELERATE_API PassGates {
 public:
  PassGates();
  ~PassGates();
  PassGates(const PassGates&) = delete;
  PassGates& operator=(const PassGates&) = delete;

 private:
  bool before_;
};

/// A tensor whose memory comes and goes while modules, optimizers and autograd
/// hold on to it. Operators that take it, or a view of it, first call the
/// keeper, in forward and in backward; other operators pay nothing. Without
/// memory, whoever reaches around LibTorch's operators gets an error that
/// names the tensor.
///
/// How: a dispatch key that nobody else uses, DeferredInit, is added to the
/// tensor's own TensorImpl; one boxed fallback of that key, registered once in
/// a process, finds the keeper through the storage and passes the call on.
class ACCELERATE_API GatedTensor {
 public:
  /// `tensor` is dense and not a view. It has its memory still, or, if it is a
  /// meta tensor, gets some on `device` later. `keeper` outlives this object.
  GatedTensor(
      const at::Tensor& tensor,
      std::string name,
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

  /// Somebody replaced the tensor's data after it was put behind the gate
  /// (Module::to, set_data), so that nobody would be told any more.
  [[nodiscard]] bool is_bypassed() const;

  [[nodiscard]] const at::Tensor& tensor() const { return tensor_; }

 private:
  struct Entry;
  friend void call_keeper(const at::Tensor& tensor);

  at::Tensor tensor_;
  c10::Storage storage_;
  std::string name_;
  std::unique_ptr<Entry> entry_;
};

}  // namespace accelerate::detail
