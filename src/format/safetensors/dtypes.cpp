#include <array>
#include <limits>

#include <accelerate/safetensors.h>

namespace accelerate::safetensors {

namespace {

struct DtypeFacts {
  Dtype dtype;
  std::string_view name;
  int bits;
};
constexpr std::array<DtypeFacts, 22> kDtypes{{
    {Dtype::BOOL, "BOOL", 8},
    {Dtype::F4, "F4", 4},
    {Dtype::F6_E2M3, "F6_E2M3", 6},
    {Dtype::F6_E3M2, "F6_E3M2", 6},
    {Dtype::U8, "U8", 8},
    {Dtype::I8, "I8", 8},
    {Dtype::F8_E5M2, "F8_E5M2", 8},
    {Dtype::F8_E4M3, "F8_E4M3", 8},
    {Dtype::F8_E8M0, "F8_E8M0", 8},
    {Dtype::F8_E4M3FNUZ, "F8_E4M3FNUZ", 8},
    {Dtype::F8_E5M2FNUZ, "F8_E5M2FNUZ", 8},
    {Dtype::I16, "I16", 16},
    {Dtype::U16, "U16", 16},
    {Dtype::F16, "F16", 16},
    {Dtype::BF16, "BF16", 16},
    {Dtype::I32, "I32", 32},
    {Dtype::U32, "U32", 32},
    {Dtype::F32, "F32", 32},
    {Dtype::C64, "C64", 64},
    {Dtype::F64, "F64", 64},
    {Dtype::I64, "I64", 64},
    {Dtype::U64, "U64", 64},
}};

std::optional<std::uint64_t> product(std::uint64_t a, std::uint64_t b) {
  if (b != 0 && a > std::numeric_limits<std::uint64_t>::max() / b) {
    return std::nullopt;
  }
  return a * b;
}

}  // namespace

std::string_view name_of(Dtype dtype) {
  return kDtypes[static_cast<std::size_t>(dtype)].name;
}

std::optional<Dtype> parse_dtype(std::string_view name) {
  for (const DtypeFacts& facts : kDtypes) {
    if (facts.name == name) return facts.dtype;
  }
  return std::nullopt;
}

int bits_of(Dtype dtype) {
  return kDtypes[static_cast<std::size_t>(dtype)].bits;
}

std::optional<std::uint64_t> bytes_of(Dtype dtype, const Shape& shape) {
  std::optional<std::uint64_t> bits = 1;
  // Multiplies from the left, so that a zero does not hide an earlier overflow,
  // as in the reference reader.
  for (const std::uint64_t size : shape) {
    bits = product(*bits, size);
    if (!bits) return std::nullopt;
  }
  bits = product(*bits, static_cast<std::uint64_t>(bits_of(dtype)));
  if (!bits || *bits % 8 != 0) return std::nullopt;
  return *bits / 8;
}

}  // namespace accelerate::safetensors
