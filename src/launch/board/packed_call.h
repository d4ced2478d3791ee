#pragma once

#include <cstdint>

namespace accelerate::detail {

/// The contents of one word of a lane or a wait.
struct PackedCall {
  std::uint16_t operation = 0;  ///< number of its text
  std::uint16_t dtype = 0;      ///< 0: none
  std::uint16_t place = 0;      ///< 0: unknown
  std::uint16_t root = 0;       ///< one more than the rank; 0: none
  /// See NotedCall. Texts have far smaller numbers than its bit.
  bool blocks_program = false;

  [[nodiscard]] std::uint64_t word() const {
    return std::uint64_t{operation} |
        (blocks_program ? kBlocksProgram : std::uint64_t{0}) |
        std::uint64_t{dtype} << 16U | std::uint64_t{place} << 32U |
        std::uint64_t{root} << 48U;
  }
  [[nodiscard]] static PackedCall of(std::uint64_t word) {
    return {
        .operation = static_cast<std::uint16_t>(word & 0x7fffU),
        .dtype = static_cast<std::uint16_t>(word >> 16U),
        .place = static_cast<std::uint16_t>(word >> 32U),
        .root = static_cast<std::uint16_t>(word >> 48U),
        .blocks_program = (word & kBlocksProgram) != 0};
  }

 private:
  static constexpr std::uint64_t kBlocksProgram = 0x8000U;
};

}  // namespace accelerate::detail
