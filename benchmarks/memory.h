#pragma once

#include <fstream>
#include <string>

#include <malloc.h>

namespace accelerate::benchmarks {

/// Resident memory from /proc in bytes: "VmRSS", or "VmHWM", the peak so far.
inline double memory_of_process(const std::string& field) {
  std::ifstream status("/proc/self/status");
  std::string line;
  while (std::getline(status, line)) {
    if (line.starts_with(field + ":"))
      return std::stod(line.substr(field.size() + 1)) * 1024;
  }
  return 0;
}

/// Resets "VmHWM".
inline void forget_peak() {
  malloc_trim(0);
  std::ofstream("/proc/self/clear_refs") << 5;
}

}  // namespace accelerate::benchmarks
