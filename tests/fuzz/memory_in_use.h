#pragma once

#include <cstddef>

namespace accelerate::fuzz {

/// Runs `body` and returns its peak of bytes in use from operator new, beyond
/// those in use at its start. Programs that link this file count all calls of
/// operator new, in every library and thread.
std::size_t peak_of_memory(void (*body)(void* data), void* data);

template <class Body>
std::size_t peak_of_memory(Body&& body) {
  return peak_of_memory(
      [](void* data) { (*static_cast<Body*>(data))(); }, &body);
}

}  // namespace accelerate::fuzz
