#pragma once

#include <cstdint>

namespace accelerate::detail {

/// The call site of a function, as the default argument of its last parameter.
/// Stands in for std::source_location, which clang++ 14 lacks.
struct CallSite {
  const char* file = nullptr;  ///< lives as long as the program
  std::uint32_t line = 0;

  static constexpr CallSite current(
      const char* file = __builtin_FILE(),
      std::uint32_t line = __builtin_LINE()) {
    return {file, line};
  }
};

}  // namespace accelerate::detail
