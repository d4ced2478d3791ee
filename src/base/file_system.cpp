#include "base/file_system.h"

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
#include <string_view>
#include <utility>

#include <accelerate/error.h>

#include "base/text.h"

namespace accelerate::detail {

namespace {

using std::filesystem::path;

[[noreturn]] void fail(std::string_view what, const path& where, int code) {
  throw Error(concat(
      "[files] cannot ", what, " ", where.string(), ": ", std::strerror(code)));
}

// The disk is set to work on pieces at least this large while the next are on
// their way; else it idles until the file is synced.
constexpr std::size_t kLeastEarlyWrite = 1U << 20U;

class PosixOutputFile final : public OutputFile {
 public:
  explicit PosixOutputFile(path where)
      : path_(std::move(where)),
        file_(::open(
            path_.c_str(),
            O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC,
            0666)) {
    if (file_ < 0) fail("create", path_, errno);
  }
  ~PosixOutputFile() override {
    if (file_ >= 0) ::close(file_);
  }

  using OutputFile::write_at;
  void write_at(std::uint64_t offset, std::span<const Bytes> pieces) override {
    const std::uint64_t begin = offset;
    std::vector<iovec> parts;
    parts.reserve(std::min<std::size_t>(pieces.size(), IOV_MAX));
    std::size_t next = 0;
    while (next < pieces.size()) {
      parts.clear();
      for (; next < pieces.size() && parts.size() < IOV_MAX; ++next) {
        if (pieces[next].empty()) continue;
        parts.push_back(
            {const_cast<std::byte*>(pieces[next].data()), pieces[next].size()});
      }
      write_parts(offset, parts);
    }
    if (offset - begin >= kLeastEarlyWrite) {
      // A hint: its failure says nothing about the data.
      ::sync_file_range(
          file_,
          static_cast<off_t>(begin),
          static_cast<off_t>(offset - begin),
          SYNC_FILE_RANGE_WRITE);
    }
  }

  void finish() override {
    if (::fsync(file_) != 0) fail("sync", path_, errno);
    if (::close(std::exchange(file_, -1)) != 0) fail("close", path_, errno);
  }

 private:
  void write_parts(std::uint64_t& offset, std::vector<iovec>& parts) {
    std::size_t first = 0;
    while (first < parts.size()) {
      const ssize_t written = ::pwritev(
          file_,
          parts.data() + first,
          static_cast<int>(parts.size() - first),
          static_cast<off_t>(offset));
      if (written < 0) {
        if (errno == EINTR) continue;
        fail("write", path_, errno);
      }
      if (written == 0) fail("write", path_, EIO);
      offset += static_cast<std::uint64_t>(written);
      auto left = static_cast<std::size_t>(written);
      while (first < parts.size() && left >= parts[first].iov_len) {
        left -= parts[first++].iov_len;
      }
      if (left > 0) {
        parts[first].iov_base =
            static_cast<std::byte*>(parts[first].iov_base) + left;
        parts[first].iov_len -= left;
      }
    }
  }

  path path_;
  int file_;
};

class PosixFileSystem final : public FileSystem {
 public:
  std::unique_ptr<OutputFile> create(const path& where) override {
    return std::make_unique<PosixOutputFile>(where);
  }
  void create_folder(const path& where) override {
    if (::mkdir(where.c_str(), 0777) != 0) fail("create folder", where, errno);
  }
  void rename(const path& from, const path& to) override {
    if (::rename(from.c_str(), to.c_str()) != 0) fail("replace", to, errno);
  }
  bool exchange(const path& one, const path& other) override {
    const int result = ::renameat2(
        AT_FDCWD, one.c_str(), AT_FDCWD, other.c_str(), RENAME_EXCHANGE);
    if (result == 0) return true;
    if (errno == EINVAL || errno == ENOSYS || errno == EOPNOTSUPP) return false;
    fail("replace", other, errno);
  }
  void link(const path& from, const path& to) override {
    if (::link(from.c_str(), to.c_str()) != 0) fail("link", from, errno);
  }
  void sync_file(const path& where) override { sync(where, O_RDONLY); }
  void remove_file(const path& where) override {
    if (::unlink(where.c_str()) != 0) fail("remove", where, errno);
  }
  void remove_folder(const path& where) override {
    if (::rmdir(where.c_str()) != 0) fail("remove folder", where, errno);
  }
  void sync_folder(const path& where) override {
    sync(where, O_RDONLY | O_DIRECTORY);
  }

 private:
  static void sync(const path& where, int flags) {
    const int file = ::open(where.c_str(), flags | O_CLOEXEC);
    if (file < 0) fail("open", where, errno);
    // Some network file systems cannot sync a folder and say EINVAL.
    const int error = ::fsync(file) == 0 || errno == EINVAL ? 0 : errno;
    ::close(file);
    if (error != 0) fail("sync", where, error);
  }
};

}  // namespace

std::shared_ptr<FileSystem> make_file_system() {
  return std::make_shared<PosixFileSystem>();
}

FolderLock::FolderLock(const path& folder)
    : file_(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
  if (file_ >= 0 && ::flock(file_, LOCK_EX | LOCK_NB) != 0) {
    ::close(std::exchange(file_, -1));
  }
}

FolderLock::FolderLock(FolderLock&& other) noexcept
    : file_(std::exchange(other.file_, -1)) {}

FolderLock& FolderLock::operator=(FolderLock&& other) noexcept {
  std::swap(file_, other.file_);
  return *this;
}

FolderLock::~FolderLock() {
  if (file_ >= 0) ::close(file_);
}

}  // namespace accelerate::detail
