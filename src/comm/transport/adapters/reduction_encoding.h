#pragma once

#include <ATen/core/Tensor.h>

#include <accelerate/world.h>

#include "comm/transport/transport.h"

namespace accelerate::detail {

/// Returns a contiguous view of `tensor` as bytes, or of a copy if `tensor` is
/// not contiguous. For moving values of any dtype.
at::Tensor as_bytes(const at::Tensor& tensor);

/// Whether memory holds the values as they are, each in its own place: no
/// conjugate or negative view, no expanded dimension.
bool is_plain(const at::Tensor& tensor);

/// Throws ConfigError for layouts that are not one block of memory (sparse,
/// quantized, nested) and so can be neither moved nor reduced.
void require_dense(const char* operation, const at::Tensor& tensor);

/// Throws ConfigError if `op` is not defined for the dtype.
void require_meaning(const char* operation, ReduceOp op, at::ScalarType dtype);

/// Encodes a reduction for a transport: a dtype that it cannot reduce becomes a
/// wider one, booleans become bytes, a mean becomes a sum.
class ReductionEncoding {
 public:
  /// Throws ConfigError if the transport has no suitable dtype.
  ReductionEncoding(
      const TransportFacts& facts,
      const at::Tensor& tensor,
      ReduceOp op);

  /// The tensor to reduce in place; `tensor` itself if possible. Contiguous
  /// unless the transport takes views.
  [[nodiscard]] const at::Tensor& buffer() const { return buffer_; }
  /// The operation that the transport performs.
  [[nodiscard]] ReduceOp transport_op() const { return transport_op_; }
  /// True if the buffer is the tensor itself, and its reduction is the result.
  [[nodiscard]] bool is_identity() const { return is_identity_; }
  /// Decodes `reduced`, a buffer or part of one, into the original dtype; for a
  /// mean, divides by `num_ranks`.
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
