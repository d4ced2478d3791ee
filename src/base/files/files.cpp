#include "base/files/files.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <optional>
#include <utility>
#include <vector>

#include <accelerate/error.h>

#include "base/files/file_system.h"
#include "base/files/page_cache.h"
#include "base/text/sizes.h"
#include "base/text/text.h"

namespace accelerate::detail {

namespace {

[[noreturn]] void throw_file_error(
    std::string_view what,
    const std::filesystem::path& path,
    int code) {
  throw Error(
      format("[files] cannot {} {}: {}", what, path, std::strerror(code)));
}

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(const std::filesystem::path& path, int flags, mode_t mode = 0)
      : fd_(::open(path.c_str(), flags | O_CLOEXEC, mode)) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  [[nodiscard]] int get() const { return fd_; }
  [[nodiscard]] bool is_open() const { return fd_ >= 0; }
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

std::string_view kind_of(mode_t mode) {
  if (S_ISDIR(mode)) return "a directory";
  if (S_ISFIFO(mode)) return "a pipe";
  if (S_ISSOCK(mode)) return "a socket";
  return S_ISLNK(mode) ? "a symbolic link" : "a device";
}

void require_regular(const std::filesystem::path& path, mode_t mode) {
  if (S_ISREG(mode)) return;
  throw Error(format(
      "[files] {} must be a regular file, but is {}", path, kind_of(mode)));
}

struct stat status_of(int file, const std::filesystem::path& path) {
  struct stat status {};
  if (::fstat(file, &status) != 0) throw_file_error("inspect", path, errno);
  return status;
}

std::string read_descriptor(
    int file,
    const std::filesystem::path& path,
    std::uint64_t most_bytes) {
  // Sizes of files of the kernel, and of pipes, are 0.
  std::uint64_t size =
      static_cast<std::uint64_t>(status_of(file, path).st_size);
  std::string contents;
  std::size_t used = 0;
  while (size <= most_bytes) {
    if (used == contents.size()) contents.resize(used < 4096 ? 8192 : used * 2);
    const ssize_t got =
        ::read(file, contents.data() + used, contents.size() - used);
    if (got < 0) {
      if (errno == EINTR) continue;
      throw_file_error("read", path, errno);
    }
    if (got == 0) {
      contents.resize(used);
      return contents;
    }
    used += static_cast<std::size_t>(got);
    size = used;
  }
  throw Error(format(
      "[files] {} must have at most {}, but has {} or more",
      path,
      format_size(static_cast<double>(most_bytes)),
      format_size(static_cast<double>(size))));
}

// The target of a chain of symbolic links, which need not exist.
std::filesystem::path follow_links(std::filesystem::path path) {
  constexpr int kMostLinks = 40;  // as many as Linux follows
  for (int i = 0; i < kMostLinks; ++i) {
    std::error_code code;
    if (!std::filesystem::is_symlink(path, code)) return path;
    const auto next = std::filesystem::read_symlink(path, code);
    if (code) throw_file_error("read link", path, code.value());
    path = directory_of(path) / next;
  }
  throw_file_error("follow link", path, ELOOP);
}

// The file at `path`, if there is one.
std::optional<struct stat> status_of(const std::filesystem::path& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) == 0) return status;
  if (errno != ENOENT) throw_file_error("inspect", path, errno);
  return std::nullopt;
}

void give_owner_and_mode(int file, const struct stat& status) {
  // Only root may give files away, and other users only to their own groups.
  if (::fchown(file, status.st_uid, status.st_gid) != 0) {
    [[maybe_unused]] const int result =
        ::fchown(file, static_cast<uid_t>(-1), status.st_gid);
  }
  ::fchmod(file, status.st_mode & 0777);
}

// Writes and syncs a new file that will replace another, if any.
void write_new_file(
    const std::filesystem::path& path,
    std::string_view contents,
    const std::optional<struct stat>& replaced) {
  // The new file may be opened only by users who may read the one it replaces.
  const Descriptor file(
      path, O_WRONLY | O_CREAT | O_EXCL, replaced ? 0600 : 0666);
  if (!file.is_open()) throw_file_error("create", path, errno);
  if (replaced) give_owner_and_mode(file.get(), *replaced);
  while (!contents.empty()) {
    const ssize_t written =
        ::write(file.get(), contents.data(), contents.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) {
      throw_file_error("write", path, written < 0 ? errno : EIO);
    }
    contents.remove_prefix(static_cast<std::size_t>(written));
  }
  if (::fsync(file.get()) != 0) throw_file_error("sync", path, errno);
}

}  // namespace

void require_regular_or_missing(
    const std::filesystem::path& path,
    bool refuses_links) {
  struct stat status {};
  const int failed = refuses_links ? ::lstat(path.c_str(), &status)
                                   : ::stat(path.c_str(), &status);
  if (failed == 0) require_regular(path, status.st_mode);
}

std::filesystem::path temporary_sibling(const std::filesystem::path& path) {
  static std::atomic<unsigned> count{0};
  std::filesystem::path name = path.filename();
  name += format(".{}-{}.tmp", ::getpid(), count.fetch_add(1));
  return path.parent_path() / name;
}

std::filesystem::path directory_of(const std::filesystem::path& path) {
  return path.has_parent_path() ? path.parent_path()
                                : std::filesystem::path(".");
}

bool stays_below_directory(std::string_view name) {
  const std::vector<std::string> parts = split(name, '/');
  return std::ranges::none_of(parts, [](const std::string& part) {
    return part.empty() || part == "." || part == "..";
  });
}

int open_descriptor(const char* path, int flags) {
  const int file = ::open(path, flags | O_CLOEXEC, 0666);
  rlimit limit{};
  if (file >= 0 || errno != EMFILE || ::getrlimit(RLIMIT_NOFILE, &limit) != 0 ||
      limit.rlim_cur == limit.rlim_max) {
    return file;
  }
  limit.rlim_cur = limit.rlim_max;
  if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) return -1;
  return ::open(path, flags | O_CLOEXEC, 0666);
}

int open_regular_file(const std::filesystem::path& path, int flags) {
  // Opening a pipe otherwise waits until it has another end.
  int opened = open_descriptor(path.c_str(), flags | O_NONBLOCK);
  if (opened < 0) {
    const int code = errno;
    require_regular_or_missing(path, (flags & O_NOFOLLOW) != 0);
    // Another program holds a lease on the file, and is giving it up.
    if (code == EWOULDBLOCK) {
      opened = open_descriptor(path.c_str(), flags);
    } else {
      errno = code;
    }
  }
  Descriptor file(opened);
  if (!file.is_open()) throw_file_error("open", path, errno);
  require_regular(path, status_of(file.get(), path).st_mode);
  // io_uring does not wait for the disk in files with O_NONBLOCK.
  const int now = ::fcntl(file.get(), F_GETFL);
  if (now < 0 || ::fcntl(file.get(), F_SETFL, now & ~O_NONBLOCK) != 0)
    throw_file_error("inspect", path, errno);
  return file.release();
}

std::string read_file(
    const std::filesystem::path& path,
    std::uint64_t most_bytes) {
  const Descriptor file(open_regular_file(path, O_RDONLY));
  return read_descriptor(file.get(), path, most_bytes);
}

std::string read_system_file(const std::filesystem::path& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

std::string read_file_or_pipe(const std::filesystem::path& path) {
  const Descriptor file(path, O_RDONLY);
  if (!file.is_open()) throw_file_error("open", path, errno);
  return read_descriptor(file.get(), path, kMostTextBytes);
}

void replace_file(
    const std::filesystem::path& given,
    std::string_view contents) {
  const std::filesystem::path path = follow_links(given);
  const std::filesystem::path directory = directory_of(path);
  std::error_code code;
  std::filesystem::create_directories(directory, code);
  if (code) throw_file_error("create directory", directory, code.value());
  const auto replaced = status_of(path);
  if (replaced && !S_ISREG(replaced->st_mode)) {
    throw_file_error(
        "replace", path, S_ISDIR(replaced->st_mode) ? EISDIR : EINVAL);
  }
  const std::filesystem::path temporary = temporary_sibling(path);
  const auto disk = make_file_system();
  try {
    write_new_file(temporary, contents, replaced);
    disk->rename(temporary, path);
  } catch (...) {
    ::unlink(temporary.c_str());
    throw;
  }
  disk->sync_directory(directory);
}

MappedFile::MappedFile(const std::filesystem::path& path) {
  const Descriptor file(open_regular_file(path, O_RDONLY));
  size_ = static_cast<std::size_t>(status_of(file.get(), path).st_size);
  if (size_ == 0) return;
  void* const address =
      ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (address == MAP_FAILED) throw_file_error("map", path, errno);
  data_ = static_cast<const std::byte*>(address);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

void MappedFile::will_need(std::size_t offset, std::size_t size) const {
  offset = std::min(offset, size_);
  size = std::min(size, size_ - offset);
  if (size == 0) return;
  const std::size_t begin = offset - offset % page_bytes();
  ::madvise(
      const_cast<std::byte*>(data_) + begin,
      offset + size - begin,
      MADV_WILLNEED);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) {
    ::munmap(const_cast<std::byte*>(data_), size_);
  }
}

}  // namespace accelerate::detail
