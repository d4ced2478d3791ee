#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cstddef>
#include <filesystem>
#include <vector>

namespace accelerate::benchmarks {

/// Evicts a file from the page cache.
inline void forget(const std::filesystem::path& file) {
  const int opened = ::open(file.c_str(), O_RDONLY | O_CLOEXEC);
  ::fsync(opened);
  ::posix_fadvise(opened, 0, 0, POSIX_FADV_DONTNEED);
  ::close(opened);
}

/// Reads a file through the page cache, in order.
inline void read_plainly(const std::filesystem::path& file) {
  static std::vector<std::byte> buffer(std::size_t{16} << 20U);
  const int opened = ::open(file.c_str(), O_RDONLY | O_CLOEXEC);
  while (::read(opened, buffer.data(), buffer.size()) > 0) {
  }
  ::close(opened);
}

}  // namespace accelerate::benchmarks
