#pragma once

#include <cstdint>
#include <cstdlib>

namespace accelerate::testing {

/// Up to which size tables of tensors have every size; ACCELERATE_TEST_SIZES in
/// the environment, or 40.
inline std::int64_t largest_table_size() {
  const char* const given = std::getenv("ACCELERATE_TEST_SIZES");
  return given == nullptr ? 40 : std::atoll(given);
}

}  // namespace accelerate::testing
