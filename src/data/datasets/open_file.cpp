#include "data/datasets/open_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include <accelerate/error.h>

#include "base/files/files.h"
#include "base/text/text.h"

namespace accelerate::detail {

namespace {

[[noreturn]] void throw_unreadable(const std::string& path, int code) {
  throw Error(format(
      "[data] {} cannot be read: {}",
      path,
      std::generic_category().message(code)));
}

std::uint64_t size_of(int descriptor, const std::string& path) {
  struct stat status {};
  if (::fstat(descriptor, &status) != 0) throw_unreadable(path, errno);
  return static_cast<std::uint64_t>(status.st_size);
}

}  // namespace

OpenFile::OpenFile(std::string path)
    : path_(std::move(path)), descriptor_(open_regular_file(path_, O_RDONLY)) {
  size_ = size_of(descriptor_, path_);
}

OpenFile::OpenFile(OpenFile&& other) noexcept
    : path_(std::move(other.path_)),
      size_(other.size_),
      descriptor_(std::exchange(other.descriptor_, -1)) {}

OpenFile& OpenFile::operator=(OpenFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(size_, other.size_);
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

OpenFile::~OpenFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void OpenFile::read(std::uint64_t offset, std::span<std::byte> bytes) const {
  while (!bytes.empty()) {
    const ssize_t count = ::pread(
        descriptor_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw_unreadable(path_, errno);
    if (count == 0) throw_shortened();
    bytes = bytes.subspan(static_cast<std::size_t>(count));
    offset += static_cast<std::uint64_t>(count);
  }
}

void OpenFile::require_size() const {
  if (size_of(descriptor_, path_) < size_) throw_shortened();
}

void OpenFile::throw_shortened() const {
  throw Error(format(
      "[data] {} must not change while it is read, but is shorter than the {} "
      "bytes it had when it was opened",
      path_,
      size_));
}

}  // namespace accelerate::detail
