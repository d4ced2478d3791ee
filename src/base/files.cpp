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

#include "base/file_system.h"
#include "base/text.h"

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
  Descriptor(const std::filesystem::path& path, int flags, mode_t mode = 0)
      : fd_(::open(path.c_str(), flags | O_CLOEXEC, mode)) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  [[nodiscard]] int get() const { return fd_; }
  [[nodiscard]] bool is_open() const { return fd_ >= 0; }

 private:
  int fd_;
};

}  // namespace

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

std::string read_file(const std::filesystem::path& path) {
  const Descriptor file(path, O_RDONLY);
  if (!file.is_open()) throw_file_error("open", path, errno);
  std::string contents;
  std::size_t used = 0;
  while (true) {
    if (used == contents.size()) contents.resize(used < 4096 ? 8192 : used * 2);
    const ssize_t got =
        ::read(file.get(), contents.data() + used, contents.size() - used);
    if (got < 0) {
      if (errno == EINTR) continue;
      throw_file_error("read", path, errno);
    }
    if (got == 0) break;
    used += static_cast<std::size_t>(got);
  }
  contents.resize(used);
  return contents;
}

void replace_file(
    const std::filesystem::path& path,
    std::string_view contents) {
  const std::filesystem::path directory = directory_of(path);
  std::error_code code;
  std::filesystem::create_directories(directory, code);
  if (code) throw_file_error("create directory", directory, code.value());
  const std::filesystem::path temporary = temporary_sibling(path);
  const auto disk = make_file_system();
  try {
    const auto file = disk->create(temporary);
    file->write_at(0, std::as_bytes(std::span(contents)));
    file->finish();
    disk->rename(temporary, path);
  } catch (...) {
    ::unlink(temporary.c_str());
    throw;
  }
  disk->sync_directory(directory);
}

MappedFile::MappedFile(const std::filesystem::path& path) {
  const Descriptor file(path, O_RDONLY);
  if (!file.is_open()) throw_file_error("open", path, errno);
  struct stat status {};
  if (::fstat(file.get(), &status) != 0)
    throw_file_error("inspect", path, errno);
  if (!S_ISREG(status.st_mode)) throw_file_error("map", path, EINVAL);
  size_ = static_cast<std::size_t>(status.st_size);
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

MappedFile::~MappedFile() {
  if (data_ != nullptr) {
    ::munmap(const_cast<std::byte*>(data_), size_);
  }
}

}  // namespace accelerate::detail
