#pragma once

#include <fstream>
#include <string>

#include <malloc.h>

namespace accelerate::benchmarks {

/// Returns a field of a file in /proc/self, in bytes; 0 if it is missing.
inline double process_field(const std::string& file, const std::string& field) {
  std::ifstream status("/proc/self/" + file);
  std::string line;
  while (std::getline(status, line)) {
    if (line.starts_with(field + ":"))
      return std::stod(line.substr(field.size() + 1)) * 1024;
  }
  return 0;
}

/// Resident memory from /proc in bytes: "VmRSS", or "VmHWM", the peak so far.
inline double memory_of_process(const std::string& field) {
  return process_field("status", field);
}

/// Bytes of this process's resident memory that are the shares of other
/// processes mapping the same pages.
inline double shares_of_others() {
  return memory_of_process("RssShmem") -
      process_field("smaps_rollup", "Pss_Shmem");
}

/// Resets "VmHWM".
inline void forget_peak() {
  malloc_trim(0);
  std::ofstream("/proc/self/clear_refs") << 5;
}

}  // namespace accelerate::benchmarks
