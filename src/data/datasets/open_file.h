#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace accelerate::detail {

/// A regular file that is open for reading. Movable. Safe to read from several
/// threads.
class OpenFile {
 public:
  /// Throws Error if the file cannot be read.
  explicit OpenFile(std::string path);
  OpenFile(OpenFile&& other) noexcept;
  OpenFile& operator=(OpenFile&& other) noexcept;
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  ~OpenFile();

  [[nodiscard]] const std::string& path() const { return path_; }
  /// The size when the file was opened.
  [[nodiscard]] std::uint64_t size() const { return size_; }
  /// Reads all of `bytes` from `offset`. Throws Error if the file is too short
  /// or cannot be read.
  void read(std::uint64_t offset, std::span<std::byte> bytes) const;
  /// Throws Error if the file has become shorter than size(), in which case
  /// reading a mapping of it could end the process.
  void require_size() const;

 private:
  [[noreturn]] void throw_shortened() const;

  std::string path_;
  std::uint64_t size_ = 0;
  int descriptor_ = -1;
};

}  // namespace accelerate::detail
