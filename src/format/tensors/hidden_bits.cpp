#include "format/tensors/hidden_bits.h"

namespace accelerate::detail {

namespace {

using safetensors::Dtype;

constexpr std::byte kSign{0x80};

bool is_integer(Dtype dtype) {
  switch (dtype) {
    case Dtype::U8:
    case Dtype::I8:
    case Dtype::U16:
    case Dtype::I16:
    case Dtype::U32:
    case Dtype::I32:
    case Dtype::U64:
    case Dtype::I64:
      return true;
    default:
      return false;
  }
}

// Negates a little-endian integer in two's complement.
void negate_integer(std::span<std::byte> bytes) {
  unsigned carry = 1;
  for (std::byte& byte : bytes) {
    carry += std::to_integer<unsigned>(~byte);
    byte = static_cast<std::byte>(carry);
    carry >>= 8U;
  }
}

}  // namespace

bool has_negatives(Dtype dtype) {
  switch (dtype) {
    case Dtype::F16:
    case Dtype::BF16:
    case Dtype::F32:
    case Dtype::F64:
    case Dtype::C64:
      return true;
    default:
      return is_integer(dtype);
  }
}

void resolve(HiddenBits bits, Dtype dtype, std::span<std::byte> bytes) {
  if (!bits.any()) return;
  const bool is_complex = dtype == Dtype::C64;
  const auto element =
      static_cast<std::size_t>(safetensors::bits_of(dtype)) / 8;
  const std::size_t width = is_complex ? element / 2 : element;
  for (std::size_t at = 0; at < bytes.size(); at += width) {
    const bool is_imaginary = is_complex && at / width % 2 == 1;
    if (bits.is_negative == (bits.is_conjugate && is_imaginary)) continue;
    const std::span<std::byte> number = bytes.subspan(at, width);
    if (is_integer(dtype)) {
      negate_integer(number);
    } else {
      number.back() ^= kSign;
    }
  }
}

}  // namespace accelerate::detail
