#pragma once

#include <cstddef>

namespace accelerate::fuzz {

/// Runs `body` and returns the most bytes that operator new had given out at a
/// moment of it, beyond those at its beginning. Programs that link this count
/// all of operator new, in every library and thread.
std::size_t peak_of_memory(void (*body)(void* data), void* data);

template <class Body>
std::size_t peak_of_memory(Body&& body) {
  return peak_of_memory(
      [](void* data) { (*static_cast<Body*>(data))(); }, &body);
}

}  // namespace accelerate::fuzz
