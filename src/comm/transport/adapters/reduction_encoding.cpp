#include "comm/transport/adapters/reduction_encoding.h"

#include <limits>

#include <ATen/Functions.h>
#include <ATen/MemoryOverlap.h>
#include <c10/core/ScalarType.h>

#include <accelerate/error.h>

#include "base/text/text.h"

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
  throw ConfigError(format(
      "[comm] {} with {} is not defined for {} values; {}",
      operation,
      name_of(op),
      c10::toString(dtype),
      advice));
}

// Booleans are sent as bytes 0 and 1.
ReduceOp boolean_op(ReduceOp op) {
  switch (op) {
    case ReduceOp::product:
    case ReduceOp::min:
    case ReduceOp::bit_and:
      return ReduceOp::min;
    case ReduceOp::bit_xor:
      return ReduceOp::bit_xor;
    default:
      return ReduceOp::max;
  }
}

// Wider dtypes that hold all values of `dtype`, the narrowest first. Integer
// sums, products and bit operations are equal modulo their width.
std::vector<at::ScalarType> wider_than(at::ScalarType dtype) {
  switch (dtype) {
    case at::kByte:
    case at::kChar:
    case at::kShort:
    case at::kUInt16:
      return {at::kInt, at::kLong};
    case at::kInt:
    case at::kUInt32:
      return {at::kLong};
    case at::kLong:
    case at::kDouble:
      return {};
    case at::kFloat:
      return {at::kDouble};
    default:
      return {at::kFloat, at::kDouble};
  }
}

// The dtype in which the transport reduces `dtype`; `dtype` itself if possible.
at::ScalarType
encoded_dtype(const TransportFacts& facts, at::ScalarType dtype, ReduceOp op) {
  if (facts.can_reduce(dtype, op)) return dtype;
  for (const at::ScalarType wider : wider_than(dtype)) {
    if (facts.can_reduce(wider, op)) return wider;
  }
  throw ConfigError(format(
      "[comm] the transport \"{}\" cannot reduce {} values with {}, nor in a "
      "wider dtype",
      facts.name,
      c10::toString(dtype),
      name_of(op)));
}

constexpr std::int64_t kSignBit = std::numeric_limits<std::int64_t>::min();

}  // namespace

void require_dense(const char* operation, const at::Tensor& tensor) {
  if (!tensor.defined()) {
    throw ConfigError(format(
        "[comm] {} must get a defined tensor, but got an undefined one",
        operation));
  }
  if (tensor.layout() != at::kStrided || tensor.is_nested()) {
    throw ConfigError(format(
        "[comm] {} must get a dense tensor, but got a {} one: use to_dense()",
        operation,
        tensor.layout()));
  }
  if (tensor.is_quantized()) {
    throw ConfigError(format(
        "[comm] {} cannot take a quantized tensor; use dequantize() or "
        "int_repr()",
        operation));
  }
}

void require_meaning(const char* operation, ReduceOp op, at::ScalarType dtype) {
  if (dtype == at::kBool) {
    if (op == ReduceOp::mean)
      refuse(operation, op, dtype, "convert to float first");
    return;
  }
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
        operation, op, dtype, "complex values can only be summed and averaged");
  }
}

bool is_plain(const at::Tensor& tensor) {
  return !tensor.is_conj() && !tensor.is_neg() &&
      at::has_internal_overlap(tensor) != at::MemOverlap::Yes;
}

at::Tensor as_bytes(const at::Tensor& tensor) {
  at::Tensor plain = tensor.detach();
  if (plain.is_conj() || plain.is_neg())
    plain = plain.resolve_conj().resolve_neg();
  return plain.contiguous().reshape({-1}).view(at::kByte);
}

ReductionEncoding::ReductionEncoding(
    const TransportFacts& facts,
    const at::Tensor& tensor,
    ReduceOp op)
    : dtype_(tensor.scalar_type()), op_(op), transport_op_(op) {
  const bool is_native =
      facts.can_reduce(dtype_, op) && !tensor.is_conj() && !tensor.is_neg();
  const bool is_view = facts.takes_views && is_plain(tensor);
  if (is_native) {
    buffer_ = is_view ? tensor.detach() : tensor.detach().contiguous();
    op_ = ReduceOp::sum;
  } else {
    encode(facts, tensor.detach());
  }
  is_identity_ = is_native && (is_view || tensor.is_contiguous());
}

void ReductionEncoding::encode(
    const TransportFacts& facts,
    const at::Tensor& tensor) {
  at::Tensor plain = tensor.resolve_conj().resolve_neg();
  if (!facts.takes_views || !is_plain(plain)) plain = plain.contiguous();
  if (op_ == ReduceOp::mean) transport_op_ = ReduceOp::sum;
  if (dtype_ == at::kBool) {
    transport_op_ = boolean_op(op_);
    // A byte view shares memory, and the bytes of a bool are 0 or 1.
    plain = plain.view(at::kByte);
  } else if (dtype_ == at::kUInt64) {
    // The 64 bits are kept: sums, products and bit operations are equal modulo
    // 2^64; order needs the sign bit flipped.
    plain = plain.view(at::kLong);
    flips_sign_ = op_ == ReduceOp::min || op_ == ReduceOp::max;
    if (flips_sign_) plain = plain.bitwise_xor(kSignBit);
  } else if (c10::isComplexType(dtype_)) {
    plain = at::view_as_real(plain);
  }
  // LibTorch cannot divide 8-bit floats.
  const bool is_divided_wider =
      op_ == ReduceOp::mean && c10::isFloat8Type(plain.scalar_type());
  buffer_ = plain.to(
      is_divided_wider
          ? at::kFloat
          : encoded_dtype(facts, plain.scalar_type(), transport_op_));
}

at::Tensor ReductionEncoding::decode(const at::Tensor& reduced, int num_ranks)
    const {
  at::Tensor values = reduced;
  if (op_ == ReduceOp::mean) values.div_(num_ranks);
  if (flips_sign_) values = values.bitwise_xor(kSignBit);
  if (values.scalar_type() == dtype_) return values;
  if (dtype_ == at::kBool) return values.to(at::kByte).view(at::kBool);
  if (dtype_ == at::kUInt64) return values.view(at::kUInt64);
  if (c10::isComplexType(dtype_)) {
    return at::view_as_complex(values.to(c10::toRealValueType(dtype_)));
  }
  return values.to(dtype_);
}

}  // namespace accelerate::detail
