#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace accelerate::detail {

/// Opens a regular file and returns its descriptor, which the caller closes.
/// `flags` are those of open(2): O_CLOEXEC is always added; with O_CREAT a
/// missing file is created with mode 0666; with O_NOFOLLOW a symbolic link is
/// refused, for directories where other users may write. Throws Error naming
/// the path and the system's reason, or what the file is if it is a directory,
/// a pipe, a socket or a device: unlike open(2), it never waits for a pipe.
int open_regular_file(const std::filesystem::path& path, int flags);

/// Opens a file as open(2) does, with O_CLOEXEC; returns a negative number and
/// sets errno if that fails. If the process has too many open files, its soft
/// limit is raised to the hard limit: a model can have thousands of files open
/// at once.
int open_descriptor(const char* path, int flags);

/// The largest file that is read as text unless the caller says otherwise.
inline constexpr std::uint64_t kMostTextBytes = 1ULL << 30U;

/// The contents of a regular file, opened by open_regular_file(). Throws Error
/// naming the path and the system's reason, also if there are more than
/// `most_bytes`.
std::string read_file(
    const std::filesystem::path& path,
    std::uint64_t most_bytes = kMostTextBytes);

/// The contents of a file of /proc or /sys, whose size is not known before;
/// empty if it cannot be read.
std::string read_system_file(const std::filesystem::path& path);

/// Reads a file named on a command line, which may also be a pipe, such as the
/// shell's <(command), and waits for the pipe's end.
std::string read_file_or_pipe(const std::filesystem::path& path);

/// Puts `contents` at `path` so that a crash at any moment leaves either the
/// old file or the new one, complete: written beside it, synced, renamed, and
/// the directory synced. Creates missing directories. The new file keeps the
/// mode of the old one, and its owner where the system allows it; if `path` is
/// a symbolic link, its target is replaced. Throws Error, also if `path` is not
/// a file, and then changes nothing and leaves nothing beside it.
void replace_file(const std::filesystem::path& path, std::string_view contents);

/// An unused name beside `path`, for the file that will replace it.
std::filesystem::path temporary_sibling(const std::filesystem::path& path);
/// The directory that holds `path`; "." for a bare name.
std::filesystem::path directory_of(const std::filesystem::path& path);

/// True if `name`, with '/' between its parts, names a file below the directory
/// that it is appended to: no part is empty, "." or "..".
bool stays_below_directory(std::string_view name);

/// A read-only mapping of an entire file; an empty file maps to an empty span.
/// Movable, unmapped by the destructor. The file must not be shortened while it
/// is mapped. Throws what open_regular_file() throws.
class MappedFile {
 public:
  explicit MappedFile(const std::filesystem::path& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  [[nodiscard]] std::span<const std::byte> bytes() const {
    return {data_, size_};
  }

  /// Starts reading the bytes [offset, offset + size) into the page cache, and
  /// nothing else. Touching any other page that is not cached also reads the
  /// pages around it, as far as the disk's read-ahead reaches: often megabytes.
  void will_need(std::size_t offset, std::size_t size) const;

 private:
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

/// Throws Error, naming what the file is, unless it is a regular file or does
/// not exist. Does not open it: closing any descriptor of a file ends the locks
/// (fcntl(2)) that the process has on it.
void require_regular_or_missing(
    const std::filesystem::path& path,
    bool refuses_links = false);

}  // namespace accelerate::detail
