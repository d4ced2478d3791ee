#include "comm/wire.h"

#include <limits>

#include <ATen/Functions.h>
#include <c10/core/ScalarType.h>

#include <accelerate/error.h>

#include "base/text.h"

namespace accelerate::detail {

namespace {

constexpr const char* kOpNames[] =
    {"sum", "mean", "product", "min", "max", "bit_and", "bit_or", "bit_xor"};

const char* name_of(ReduceOp op) { return kOpNames[static_cast<int>(op)]; }

bool is_bit_op(ReduceOp op) {
  return op == ReduceOp::bit_and || op == ReduceOp::bit_or ||
      op == ReduceOp::bit_xor;
}

[[noreturn]] void refuse(
    const char* operation,
    ReduceOp op,
    at::ScalarType dtype,
    std::string_view advice) {
  throw ConfigError(concat(
      "[comm] ",
      operation,
      " with ",
      name_of(op),
      " was asked for ",
      c10::toString(dtype),
      " values, for which it means nothing; ",
      advice));
}

// Booleans travel as bytes 0 and 1.
ReduceOp boolean_op(const char* operation, ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
    case ReduceOp::max:
    case ReduceOp::bit_or:
      return ReduceOp::max;
    case ReduceOp::product:
    case ReduceOp::min:
    case ReduceOp::bit_and:
      return ReduceOp::min;
    case ReduceOp::bit_xor:
      return ReduceOp::bit_xor;
    case ReduceOp::mean:
      break;
  }
  refuse(operation, op, at::kBool, "convert to float first");
}

void require_meaning(const char* operation, ReduceOp op, at::ScalarType dtype) {
  if (dtype == at::kFloat4_e2m1fn_x2) {
    refuse(operation, op, dtype, "convert to float first");
  }
  const bool is_integral = c10::isIntegralType(dtype, /*includeBool=*/false);
  if (is_bit_op(op) && !is_integral)
    refuse(operation, op, dtype, "use integers");
  if (op == ReduceOp::mean && is_integral) {
    refuse(
        operation, op, dtype, "convert to float first, or use sum and divide");
  }
  const bool is_ordered_or_scaled = op != ReduceOp::sum && op != ReduceOp::mean;
  if (c10::isComplexType(dtype) && is_ordered_or_scaled) {
    refuse(
        operation, op, dtype, "complex values can be summed and averaged only");
  }
}

// The dtype in which Gloo computes for `dtype`; `dtype` itself if it can.
at::ScalarType wire_dtype(at::ScalarType dtype) {
  switch (dtype) {
    case at::kByte:
    case at::kChar:
    case at::kInt:
    case at::kLong:
    case at::kHalf:
    case at::kBFloat16:
    case at::kFloat:
    case at::kDouble:
      return dtype;
    case at::kBool:
      return at::kByte;
    case at::kShort:
    case at::kUInt16:
      return at::kInt;
    case at::kUInt32:
      return at::kLong;
    // The same 64 bits: sums, products and bit operations are equal modulo
    // 2^64; order needs the sign bit flipped.
    case at::kUInt64:
      return at::kLong;
    default:
      return at::kFloat;
  }
}

constexpr std::int64_t kSignBit = std::numeric_limits<std::int64_t>::min();

}  // namespace

void require_dense(const char* operation, const at::Tensor& tensor) {
  if (!tensor.defined()) {
    throw ConfigError(
        concat("[comm] ", operation, " was given an undefined tensor"));
  }
  if (tensor.layout() != at::kStrided || tensor.is_nested()) {
    throw ConfigError(concat(
        "[comm] ",
        operation,
        " was given a ",
        tensor.layout(),
        " tensor; only dense ones can travel: use to_dense()"));
  }
  if (tensor.is_quantized()) {
    throw ConfigError(concat(
        "[comm] ",
        operation,
        " was given a quantized tensor; use dequantize() or int_repr()"));
  }
}

at::Tensor as_bytes(const at::Tensor& tensor) {
  at::Tensor plain = tensor.detach();
  if (plain.is_conj() || plain.is_neg())
    plain = plain.resolve_conj().resolve_neg();
  return plain.contiguous().reshape({-1}).view(at::kByte);
}

ArithmeticWire::ArithmeticWire(
    const char* operation,
    const at::Tensor& tensor,
    ReduceOp op)
    : dtype_(tensor.scalar_type()), op_(op), transport_op_(op) {
  at::Tensor plain = tensor.detach();
  if (dtype_ == at::kBool) {
    transport_op_ = boolean_op(operation, op);
    buffer_ = plain.contiguous().view(at::kByte);
    // A byte view shares memory, and the bytes of a bool are 0 or 1.
    return;
  }
  require_meaning(operation, op, dtype_);
  if (op == ReduceOp::mean) transport_op_ = ReduceOp::sum;
  if (c10::isComplexType(dtype_)) {
    buffer_ = at::view_as_real(plain.resolve_conj().resolve_neg().contiguous());
    return;
  }
  if (plain.is_neg()) plain = plain.resolve_neg();
  if (dtype_ == at::kUInt64) {
    buffer_ = plain.contiguous().view(at::kLong);
    flips_sign_ = op == ReduceOp::min || op == ReduceOp::max;
    if (flips_sign_) buffer_ = buffer_.bitwise_xor(kSignBit);
    return;
  }
  buffer_ = plain.to(wire_dtype(dtype_)).contiguous();
}

at::Tensor ArithmeticWire::decode(const at::Tensor& reduced, int num_ranks)
    const {
  at::Tensor values = reduced;
  if (op_ == ReduceOp::mean) values.div_(num_ranks);
  if (flips_sign_) values = values.bitwise_xor(kSignBit);
  if (dtype_ == at::kBool || dtype_ == at::kUInt64) return values.view(dtype_);
  if (c10::isComplexType(dtype_)) return at::view_as_complex(values);
  return values.to(dtype_);
}

}  // namespace accelerate::detail
