#pragma once

#include <filesystem>
#include <string_view>
#include <utility>

#include <accelerate/error.h>

#include "fuzz/targets.h"

namespace accelerate::fuzz {

inline std::string_view text_of(Input input) {
  return {reinterpret_cast<const char*>(input.data()), input.size()};
}

/// This process's own directory for input files, in memory if possible.
const std::filesystem::path& scratch();
void put(const std::filesystem::path& path, std::string_view contents);

/// Runs `body`, which may refuse the input.
template <class Body>
void guarded(Body&& body) {
  try {
    std::forward<Body>(body)();
  } catch (const Error&) {
    // Refused, as expected.
  }
}

}  // namespace accelerate::fuzz
