#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <accelerate/world.h>

namespace accelerate::detail {

/// A contiguous tensor of bytes over the same memory as `tensor`, or over a
/// copy where `tensor` is not contiguous. For moving values of any dtype.
at::Tensor as_bytes(const at::Tensor& tensor);

/// Whether moving or reducing `tensor` is possible at all; throws ConfigError
/// for layouts that have no single block of memory (sparse, quantized, nested).
void require_dense(const char* operation, const at::Tensor& tensor);

/// How a reduction travels: Gloo computes in few dtypes, so the rest go in a
/// wider one, and booleans as bytes.
class ArithmeticWire {
 public:
  /// Throws ConfigError where `op` means nothing for the dtype.
  ArithmeticWire(const char* operation, const at::Tensor& tensor, ReduceOp op);

  /// What is reduced, in place: contiguous; `tensor` itself where possible.
  [[nodiscard]] at::Tensor& buffer() { return buffer_; }
  /// The operation that the transport performs.
  [[nodiscard]] ReduceOp transport_op() const { return transport_op_; }
  /// `reduced`, a buffer or part of one, as values of the original dtype, and
  /// divided for a mean over `num_ranks`.
  [[nodiscard]] at::Tensor decode(const at::Tensor& reduced, int num_ranks)
      const;

 private:
  at::ScalarType dtype_;
  ReduceOp op_;
  ReduceOp transport_op_;
  bool flips_sign_ = false;
  at::Tensor buffer_;
};

}  // namespace accelerate::detail
