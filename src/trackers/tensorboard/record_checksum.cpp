#include "trackers/tensorboard/record_checksum.h"

#include <array>
#include <bit>

namespace accelerate::detail {

namespace {

// What each byte contributes to the remainder; the polynomial's bits reversed.
constexpr std::array<std::uint32_t, 256> castagnoli_table() {
  constexpr std::uint32_t kPolynomial = 0x82f63b78;
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t remainder = i;
    for (int bit = 0; bit < 8; ++bit) {
      remainder =
          (remainder >> 1U) ^ ((remainder & 1U) != 0 ? kPolynomial : 0U);
    }
    table.at(i) = remainder;
  }
  return table;
}

}  // namespace

std::uint32_t masked_crc32c(std::string_view bytes) {
  static constexpr std::array<std::uint32_t, 256> kTable = castagnoli_table();
  std::uint32_t remainder = 0xffffffff;
  for (const char each : bytes) {
    const auto low = static_cast<unsigned char>(
        remainder ^ static_cast<unsigned char>(each));
    remainder = (remainder >> 8U) ^ kTable.at(low);
  }
  return std::rotr(~remainder, 15) + 0xa282ead8;
}

}  // namespace accelerate::detail
