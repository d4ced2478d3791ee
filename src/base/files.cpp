#include "base/files.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

#include <accelerate/error.h>

#include "base/text.h"

namespace accelerate::detail {

namespace {

[[noreturn]] void
fail(std::string_view what, const std::filesystem::path& path, int code) {
  throw Error(
      concat("[files] cannot ", what, " ", path, ": ", std::strerror(code)));
}

class Descriptor {
 public:
  Descriptor(const std::filesystem::path& path, int flags, mode_t mode = 0)
      : fd_(::open(path.c_str(), flags | O_CLOEXEC, mode)) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  [[nodiscard]] int get() const { return fd_; }
  [[nodiscard]] bool is_open() const { return fd_ >= 0; }
  // Reports the error that a late write may only surface here.
  int close_now() { return ::close(std::exchange(fd_, -1)) == 0 ? 0 : errno; }

 private:
  int fd_;
};

// Returns 0 or the error number.
int write_all(int fd, std::string_view contents) {
  while (!contents.empty()) {
    const ssize_t written = ::write(fd, contents.data(), contents.size());
    if (written < 0) {
      if (errno == EINTR) continue;
      return errno;
    }
    contents.remove_prefix(static_cast<std::size_t>(written));
  }
  return 0;
}

std::filesystem::path sibling_of(const std::filesystem::path& path) {
  static std::atomic<unsigned> count{0};
  std::filesystem::path name = path.filename();
  name += concat(".", ::getpid(), "-", count.fetch_add(1), ".tmp");
  return path.parent_path() / name;
}

std::filesystem::path folder_of(const std::filesystem::path& path) {
  return path.has_parent_path() ? path.parent_path()
                                : std::filesystem::path(".");
}

}  // namespace

std::string read_file(const std::filesystem::path& path) {
  const Descriptor file(path, O_RDONLY);
  if (!file.is_open()) fail("open", path, errno);
  std::string contents;
  std::size_t used = 0;
  while (true) {
    if (used == contents.size()) contents.resize(used < 4096 ? 8192 : used * 2);
    const ssize_t got =
        ::read(file.get(), contents.data() + used, contents.size() - used);
    if (got < 0) {
      if (errno == EINTR) continue;
      fail("read", path, errno);
    }
    if (got == 0) break;
    used += static_cast<std::size_t>(got);
  }
  contents.resize(used);
  return contents;
}

void sync_folder(const std::filesystem::path& folder) {
  const Descriptor fd(folder, O_RDONLY | O_DIRECTORY);
  if (!fd.is_open()) fail("open folder", folder, errno);
  // Some network file systems cannot sync a folder and say EINVAL.
  if (::fsync(fd.get()) != 0 && errno != EINVAL)
    fail("sync folder", folder, errno);
}

void replace_file(
    const std::filesystem::path& path,
    std::string_view contents) {
  const std::filesystem::path folder = folder_of(path);
  std::error_code code;
  std::filesystem::create_directories(folder, code);
  if (code) fail("create folder", folder, code.value());
  const std::filesystem::path temporary = sibling_of(path);
  {
    Descriptor file(temporary, O_WRONLY | O_CREAT | O_EXCL, 0666);
    if (!file.is_open()) fail("create", temporary, errno);
    int error = write_all(file.get(), contents);
    if (error == 0 && ::fsync(file.get()) != 0) error = errno;
    const int close_error = file.close_now();
    if (error == 0) error = close_error;
    if (error != 0) {
      ::unlink(temporary.c_str());
      fail("write", path, error);
    }
  }
  if (::rename(temporary.c_str(), path.c_str()) != 0) {
    const int error = errno;
    ::unlink(temporary.c_str());
    fail("replace", path, error);
  }
  sync_folder(folder);
}

MappedFile::MappedFile(const std::filesystem::path& path) {
  const Descriptor file(path, O_RDONLY);
  if (!file.is_open()) fail("open", path, errno);
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) fail("inspect", path, errno);
  if (!S_ISREG(status.st_mode)) fail("map", path, EINVAL);
  size_ = static_cast<std::size_t>(status.st_size);
  if (size_ == 0) return;
  void* const address =
      ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (address == MAP_FAILED) fail("map", path, errno);
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

MappedFile::~MappedFile() {
  if (data_ != nullptr) {
    ::munmap(const_cast<std::byte*>(data_), size_);
  }
}

}  // namespace accelerate::detail
