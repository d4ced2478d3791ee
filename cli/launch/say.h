#pragma once

#include <string>

#include <unistd.h>

namespace accelerate::cli {

/// Writes a line of the launcher to standard error, unbuffered, among the
/// ranks' lines.
inline void say(const std::string& text) {
  (void)!::write(STDERR_FILENO, text.data(), text.size());
}

}  // namespace accelerate::cli
