#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <thread>
#include <vector>

namespace accelerate::benchmarks {

inline constexpr std::size_t kDirectPage = 4096;

/// Memory whose pages are there, so that a read does not clear them first.
struct Buffer {
  explicit Buffer(std::size_t num_bytes)
      : size(num_bytes),
        data(::mmap(
            nullptr,
            num_bytes,
            PROT_READ | PROT_WRITE,
            MAP_PRIVATE | MAP_ANONYMOUS,
            -1,
            0)) {
    ::madvise(data, size, MADV_HUGEPAGE);
    std::memset(data, 0, size);
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { ::munmap(data, size); }

  std::size_t size;
  void* data;
};

/// Reads a file with threads that take pieces of it in turn.
inline void
read_in_parallel(const std::filesystem::path& file, Buffer& buffer, int flags) {
  constexpr std::size_t kPiece = std::size_t{4} << 20U;
  constexpr int kThreads = 4;
  const std::size_t size = std::filesystem::file_size(file);
  std::atomic<std::size_t> next = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      const int opened = ::open(file.c_str(), O_RDONLY | O_CLOEXEC | flags);
      for (std::size_t at = next.fetch_add(kPiece); at < size;
           at = next.fetch_add(kPiece)) {
        // Whole pages, as direct reads want them.
        const std::size_t wanted =
            (std::min(kPiece, size - at) + kDirectPage - 1) / kDirectPage *
            kDirectPage;
        for (std::size_t done = 0; done < wanted;) {
          const ssize_t got = ::pread(
              opened,
              static_cast<char*>(buffer.data) + at + done,
              wanted - done,
              static_cast<off_t>(at + done));
          if (got <= 0) break;
          done += static_cast<std::size_t>(got);
        }
      }
      ::close(opened);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace accelerate::benchmarks
