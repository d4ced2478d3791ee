#include "base/files/file_system.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <string_view>
#include <utility>

#include <accelerate/error.h>

#include "base/files/direct_writer.h"
#include "base/text/text.h"

namespace accelerate::detail {

namespace {

using std::filesystem::path;

[[noreturn]] void fail(std::string_view what, const path& where, int code) {
  throw Error(format(
      "[files] cannot {} {}: {}", what, where.string(), std::strerror(code)));
}

// Smaller writes go through the page cache.
constexpr std::size_t kLeastDirectWrite = 1U << 20U;

// The writer shared by all files being written: its memory is bounded, and
// freed after the last of them.
class SharedWriter {
 public:
  std::shared_ptr<DirectWriter> get() {
    const std::lock_guard lock(mutex_);
    std::shared_ptr<DirectWriter> writer = writer_.lock();
    if (writer == nullptr) {
      writer = std::make_shared<DirectWriter>();
      writer_ = writer;
    }
    return writer;
  }

 private:
  std::mutex mutex_;
  std::weak_ptr<DirectWriter> writer_;
};

std::uint64_t num_bytes_of(std::span<const Bytes> pieces) {
  std::uint64_t total = 0;
  for (const Bytes piece : pieces) total += piece.size();
  return total;
}

std::vector<Bytes> without_front(
    std::span<const Bytes> pieces,
    std::uint64_t num_bytes) {
  std::vector<Bytes> rest;
  for (const Bytes piece : pieces) {
    const std::uint64_t skipped =
        std::min<std::uint64_t>(piece.size(), num_bytes);
    num_bytes -= skipped;
    if (skipped < piece.size()) rest.push_back(piece.subspan(skipped));
  }
  return rest;
}

class PosixOutputFile final : public OutputFile {
 public:
  PosixOutputFile(path where, std::shared_ptr<SharedWriter> writer)
      : path_(std::move(where)),
        shared_writer_(std::move(writer)),
        file_(::open(
            path_.c_str(),
            O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC,
            0666)) {
    if (file_ < 0) fail("create", path_, errno);
  }
  ~PosixOutputFile() override {
    static_cast<void>(end_direct_writes());
    if (file_ >= 0) ::close(file_);
  }

  using OutputFile::write_at;
  void write_at(std::uint64_t offset, std::span<const Bytes> pieces) override {
    const std::uint64_t total = num_bytes_of(pieces);
    std::uint64_t direct = 0;
    if (total >= kLeastDirectWrite && offset % DirectWriter::kAlignment == 0 &&
        can_write_directly()) {
      direct = total - total % DirectWriter::kAlignment;
      const int error = writer_->write(direct_, offset, direct, pieces);
      if (error != 0) fail("write", path_, error);
    }
    if (direct == 0) {
      write_buffered(offset, pieces);
    } else if (direct < total) {
      write_buffered(offset + direct, without_front(pieces, direct));
    }
  }

  void finish() override {
    if (const int error = end_direct_writes()) fail("write", path_, error);
    if (::fsync(file_) != 0) fail("sync", path_, errno);
    if (::close(std::exchange(file_, -1)) != 0) fail("close", path_, errno);
  }

 private:
  bool can_write_directly() {
    std::call_once(direct_once_, [&] {
      direct_.direct = ::open(path_.c_str(), O_WRONLY | O_DIRECT | O_CLOEXEC);
      direct_.plain = file_;
      if (direct_.direct >= 0) writer_ = shared_writer_->get();
    });
    return direct_.direct >= 0;
  }

  int end_direct_writes() {
    if (writer_ == nullptr) return 0;
    const int error = writer_->wait(direct_);
    writer_ = nullptr;
    ::close(std::exchange(direct_.direct, -1));
    return error;
  }

  void write_buffered(std::uint64_t offset, std::span<const Bytes> pieces) {
    const std::uint64_t begin = offset;
    std::vector<iovec> vectors;
    vectors.reserve(std::min<std::size_t>(pieces.size(), IOV_MAX));
    std::size_t next = 0;
    while (next < pieces.size()) {
      vectors.clear();
      for (; next < pieces.size() && vectors.size() < IOV_MAX; ++next) {
        if (pieces[next].empty()) continue;
        vectors.push_back(
            {const_cast<std::byte*>(pieces[next].data()), pieces[next].size()});
      }
      write_vectors(offset, vectors);
    }
    if (offset - begin >= kLeastDirectWrite) {
      // Lets the disk start on these bytes while the next are in flight. This
      // is only a hint: its failure says nothing about the data.
      ::sync_file_range(
          file_,
          static_cast<off_t>(begin),
          static_cast<off_t>(offset - begin),
          SYNC_FILE_RANGE_WRITE);
    }
  }

  void write_vectors(std::uint64_t& offset, std::vector<iovec>& vectors) {
    std::size_t first = 0;
    while (first < vectors.size()) {
      const ssize_t written = ::pwritev(
          file_,
          vectors.data() + first,
          static_cast<int>(vectors.size() - first),
          static_cast<off_t>(offset));
      if (written < 0) {
        if (errno == EINTR) continue;
        fail("write", path_, errno);
      }
      if (written == 0) fail("write", path_, EIO);
      offset += static_cast<std::uint64_t>(written);
      auto left = static_cast<std::size_t>(written);
      while (first < vectors.size() && left >= vectors[first].iov_len) {
        left -= vectors[first++].iov_len;
      }
      if (left > 0) {
        vectors[first].iov_base =
            static_cast<std::byte*>(vectors[first].iov_base) + left;
        vectors[first].iov_len -= left;
      }
    }
  }

  path path_;
  std::shared_ptr<SharedWriter> shared_writer_;
  int file_;
  std::once_flag direct_once_;
  std::shared_ptr<DirectWriter> writer_;
  DirectWriter::File direct_;
};

// True for the errors of a kernel or file system that lacks a renameat2() flag.
bool lacks_renameat2(int error) {
  return error == EINVAL || error == ENOSYS || error == EOPNOTSUPP;
}

class PosixFileSystem final : public FileSystem {
 public:
  std::unique_ptr<OutputFile> create(const path& where) override {
    return std::make_unique<PosixOutputFile>(where, writer_);
  }
  void create_directory(const path& where) override {
    if (::mkdir(where.c_str(), 0777) != 0)
      fail("create directory", where, errno);
  }
  void rename(const path& from, const path& to) override {
    if (::rename(from.c_str(), to.c_str()) != 0) fail("replace", to, errno);
  }
  bool rename_to_unused(const path& from, const path& to) override {
    if (::renameat2(
            AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) ==
        0) {
      return true;
    }
    if (errno == EEXIST) return false;
    if (!lacks_renameat2(errno)) fail("replace", to, errno);
    // Only an empty directory that appears between these two calls could be
    // replaced: a rename leaves any other alone.
    struct stat there {};
    if (::lstat(to.c_str(), &there) == 0) return false;
    if (::rename(from.c_str(), to.c_str()) == 0) return true;
    if (errno == EEXIST || errno == ENOTEMPTY) return false;
    fail("replace", to, errno);
  }
  bool exchange(const path& one, const path& other) override {
    const int result = ::renameat2(
        AT_FDCWD, one.c_str(), AT_FDCWD, other.c_str(), RENAME_EXCHANGE);
    if (result == 0) return true;
    if (lacks_renameat2(errno)) return false;
    fail("replace", other, errno);
  }
  void link(const path& from, const path& to) override {
    if (::link(from.c_str(), to.c_str()) != 0) fail("link", from, errno);
  }
  void sync_file(const path& where) override { sync(where, O_RDONLY); }
  void remove_file(const path& where) override {
    if (::unlink(where.c_str()) != 0) fail("remove", where, errno);
  }
  void remove_directory(const path& where) override {
    if (::rmdir(where.c_str()) != 0) fail("remove directory", where, errno);
  }
  void sync_directory(const path& where) override {
    sync(where, O_RDONLY | O_DIRECTORY);
  }

 private:
  std::shared_ptr<SharedWriter> writer_ = std::make_shared<SharedWriter>();

  static void sync(const path& where, int flags) {
    const int file = ::open(where.c_str(), flags | O_CLOEXEC);
    if (file < 0) fail("open", where, errno);
    // Some network file systems cannot sync a directory and return EINVAL.
    const int error = ::fsync(file) == 0 || errno == EINVAL ? 0 : errno;
    ::close(file);
    if (error != 0) fail("sync", where, error);
  }
};

}  // namespace

std::shared_ptr<FileSystem> make_file_system() {
  return std::make_shared<PosixFileSystem>();
}

DirectoryLock::DirectoryLock(const path& directory)
    : file_(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
  if (file_ >= 0 && ::flock(file_, LOCK_EX | LOCK_NB) != 0) {
    ::close(std::exchange(file_, -1));
  }
}

DirectoryLock DirectoryLock::wait(const path& directory) {
  DirectoryLock lock;
  lock.file_ = ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (lock.file_ < 0) fail("open", directory, errno);
  while (::flock(lock.file_, LOCK_EX) != 0)
    if (errno != EINTR) fail("lock", directory, errno);
  return lock;
}

DirectoryLock::DirectoryLock(DirectoryLock&& other) noexcept
    : file_(std::exchange(other.file_, -1)) {}

DirectoryLock& DirectoryLock::operator=(DirectoryLock&& other) noexcept {
  std::swap(file_, other.file_);
  return *this;
}

DirectoryLock::~DirectoryLock() {
  if (file_ >= 0) ::close(file_);
}

}  // namespace accelerate::detail
