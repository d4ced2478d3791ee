#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

namespace accelerate::detail {

/// Bytes of a file in memory: pages of the page cache at first, copies of them
/// once somebody wants to change the file. Unmaps them when it is destroyed.
class MappedBytes {
 public:
  ~MappedBytes();
  MappedBytes(const MappedBytes&) = delete;
  MappedBytes& operator=(const MappedBytes&) = delete;

  /// The byte that was asked for; those after it follow. Writing to them does
  /// not change the file. A write at the moment at which another program opens
  /// the file for writing may be lost: pages are replaced by copies that were
  /// made just before. No system call does both at once, and truncation takes
  /// even private pages.
  [[nodiscard]] std::byte* data() const { return data_; }
  /// Calls work(i) for each i below `count`, possibly on several threads.
  using ForEach = std::function<
      void(std::size_t count, const std::function<void(std::size_t i)>& work)>;

  /// Has all pages of the bytes that were asked for in memory, so that using
  /// them waits for nothing. False if that fails. `for_each` may use several
  /// threads; null: only the caller's.
  [[nodiscard]] bool populate(const ForEach& for_each = nullptr) const;

 private:
  friend class MappableFile;
  struct File;
  MappedBytes() = default;

  std::shared_ptr<File> file_;
  void* begin_ = nullptr;
  std::size_t size_ = 0;
  /// The bytes that were asked for, inside of what is mapped.
  std::byte* data_ = nullptr;
  std::size_t num_bytes_ = 0;
};

/// A file of which bytes can be mapped without the danger of that: reading pages
/// of a file that another program has truncated ends the process, and pages of
/// one that is written to change.
///
/// The kernel promises it (a read lease, fcntl(2)): whoever opens the file for
/// writing or truncates it has to wait until a thread of this library has put
/// copies in the place of all mapped pages. Where the kernel makes no such
/// promise (files of other users, file systems on a network, files that somebody
/// has open for writing), nothing is mapped.
///
/// Threads may call its functions at once.
class MappableFile {
 public:
  /// `descriptor` is open for reading, and must stay open as long as this
  /// object.
  explicit MappableFile(int descriptor);
  ~MappableFile();
  MappableFile(const MappableFile&) = delete;
  MappableFile& operator=(const MappableFile&) = delete;

  /// Asks for the promise, unless there is one, and returns its number; 0 if
  /// there is none. As long as the number is the same, so is the file.
  [[nodiscard]] std::uint64_t protect() const;

  /// Maps bytes of the file. Null if this promise has ended, or the file is
  /// shorter.
  [[nodiscard]] std::unique_ptr<MappedBytes>
  map(std::uint64_t promise, std::uint64_t offset, std::size_t num_bytes) const;

 private:
  std::shared_ptr<MappedBytes::File> file_;
};

}  // namespace accelerate::detail
