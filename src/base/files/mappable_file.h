#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

namespace accelerate::detail {

/// Bytes of a mapped file: pages of the page cache at first, private copies
/// once another program wants to change the file. The destructor unmaps them.
class MappedBytes {
 public:
  ~MappedBytes();
  MappedBytes(const MappedBytes&) = delete;
  MappedBytes& operator=(const MappedBytes&) = delete;

  /// The first byte that was asked for. Writing to the bytes does not change
  /// the file. A write can be lost if another program opens the file for
  /// writing at that moment: pages are replaced by copies made just before. No
  /// system call does both at once, and truncation takes even private pages.
  [[nodiscard]] std::byte* data() const { return data_; }
  /// Calls work(i) for each i below `count`, possibly on several threads.
  using ForEach = std::function<
      void(std::size_t count, const std::function<void(std::size_t i)>& work)>;

  /// Brings all the requested pages into memory, so that using them never
  /// blocks. Returns false if that fails. `for_each` may use several threads;
  /// null uses only the caller's.
  [[nodiscard]] bool populate(const ForEach& for_each = nullptr) const;

 private:
  friend class MappableFile;
  struct File;
  MappedBytes() = default;

  std::shared_ptr<File> file_;
  void* begin_ = nullptr;
  std::size_t size_ = 0;
  /// The bytes that were asked for, inside the mapping.
  std::byte* data_ = nullptr;
  std::size_t num_bytes_ = 0;
};

/// A file whose bytes can be mapped safely. Otherwise, reading mapped pages of
/// a file that another program has truncated kills the process, and pages
/// change when another program writes to the file.
///
/// The kernel promises this with a read lease (fcntl(2)): a program that opens
/// the file for writing or truncates it has to wait until a thread of this
/// library has replaced all mapped pages with copies. Where the kernel makes no
/// such promise (files of other users, network file systems, files that are
/// open for writing), nothing is mapped.
///
/// Thread-safe.
class MappableFile {
 public:
  /// `descriptor` is open for reading, and must stay open as long as this
  /// object lives.
  explicit MappableFile(int descriptor);
  ~MappableFile();
  MappableFile(const MappableFile&) = delete;
  MappableFile& operator=(const MappableFile&) = delete;

  /// Requests the promise unless it already holds, and returns its number; 0 if
  /// the kernel refuses. While the number stays the same, so does the file.
  [[nodiscard]] std::uint64_t protect() const;

  /// Maps bytes of the file. Null if this promise has ended or the file is
  /// shorter.
  [[nodiscard]] std::unique_ptr<MappedBytes>
  map(std::uint64_t promise, std::uint64_t offset, std::size_t num_bytes) const;

 private:
  std::shared_ptr<MappedBytes::File> file_;
};

}  // namespace accelerate::detail
