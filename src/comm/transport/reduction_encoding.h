#pragma once

#include <ATen/core/Tensor.h>

#include <accelerate/world.h>

#include "comm/transport/transport.h"

namespace accelerate::detail {

/// A contiguous tensor of bytes over the same memory as `tensor`, or over a
/// copy where `tensor` is not contiguous. For moving values of any dtype.
at::Tensor as_bytes(const at::Tensor& tensor);

/// Whether moving or reducing `tensor` is possible at all; throws ConfigError
/// for layouts that have no single block of memory (sparse, quantized, nested).
void require_dense(const char* operation, const at::Tensor& tensor);

/// Throws ConfigError where `op` means nothing for the dtype.
void require_meaning(const char* operation, ReduceOp op, at::ScalarType dtype);

/// How a reduction travels: what a transport cannot reduce goes in a dtype in
/// which it can, booleans as bytes, a mean as a sum.
class ReductionEncoding {
 public:
  /// Throws ConfigError if the transport has no dtype for it.
  ReductionEncoding(
      const TransportFacts& facts,
      const at::Tensor& tensor,
      ReduceOp op);

  /// What is reduced, in place: contiguous; `tensor` itself where possible.
  [[nodiscard]] const at::Tensor& buffer() const { return buffer_; }
  /// The operation that the transport performs.
  [[nodiscard]] ReduceOp transport_op() const { return transport_op_; }
  /// The buffer is the tensor, and its reduction the result.
  [[nodiscard]] bool is_identity() const { return is_identity_; }
  /// `reduced`, a buffer or part of one, as values of the original dtype, and
  /// divided for a mean over `num_ranks`.
  [[nodiscard]] at::Tensor decode(const at::Tensor& reduced, int num_ranks)
      const;

 private:
  void encode(const TransportFacts& facts, const at::Tensor& tensor);

  at::ScalarType dtype_;
  ReduceOp op_;
  ReduceOp transport_op_;
  bool is_identity_ = false;
  bool flips_sign_ = false;
  at::Tensor buffer_;
};

}  // namespace accelerate::detail
