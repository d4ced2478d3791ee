#include "base/files/scratch_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include <accelerate/error.h>

#include "base/text/sizes.h"
#include "base/text/text.h"

namespace accelerate::detail {

namespace {

// Opens a file of the directory that has no name, or loses it at once.
int open_nameless(const std::filesystem::path& directory) {
  constexpr mode_t kMode = 0600;
  const int file =
      ::open(directory.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC | O_EXCL, kMode);
  if (file >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL))
    return file;
  std::string name = (directory / "accelerate-XXXXXX").string();
  const int named = ::mkostemp(name.data(), O_CLOEXEC);
  if (named >= 0) ::unlink(name.c_str());
  return named;
}

std::string reason(int error) { return std::strerror(error); }

}  // namespace

ScratchFile::ScratchFile(std::filesystem::path directory, std::string what)
    : directory_(std::move(directory)),
      description_(format("{} in {}", what, directory_.string())),
      plain_(open_nameless(directory_)) {
  if (plain_ < 0) {
    throw Error(format(
        "[base] {} must be a directory in which files can be made, but is "
        "none: {}",
        directory_.string(),
        reason(errno)));
  }
  direct_ = ::open(
      format("/proc/self/fd/{}", plain_).c_str(),
      O_RDWR | O_DIRECT | O_CLOEXEC);
}

ScratchFile::~ScratchFile() {
  if (direct_ >= 0) ::close(direct_);
  ::close(plain_);
}

std::uint64_t ScratchFile::size() const {
  const std::lock_guard lock(mutex_);
  return size_;
}

void ScratchFile::grow_to(std::uint64_t size) {
  if (size <= size_) return;
  int error = 0;
  do {
    error = ::posix_fallocate(
        plain_, static_cast<off_t>(size_), static_cast<off_t>(size - size_));
  } while (error == EINTR);
  if (error == ENOSPC || error == EDQUOT || error == EFBIG) {
    std::error_code unknown;
    const auto space = std::filesystem::space(directory_, unknown);
    throw Error(format(
        "[base] {} must have room for {} more to hold {}, but has {} ({})",
        directory_.string(),
        format_size(static_cast<double>(size - size_)),
        description_,
        unknown ? "less" : format_size(static_cast<double>(space.available)),
        reason(error)));
  }
  if (error != 0) {
    throw Error(format(
        "[base] cannot reserve room for {}: {}", description_, reason(error)));
  }
  size_ = size;
}

std::uint64_t ScratchFile::allocate(std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  const std::uint64_t size = rounded(bytes);
  if (const auto found = free_.find(size); found != free_.end()) {
    const std::uint64_t begin = found->second.back();
    found->second.pop_back();
    if (found->second.empty()) free_.erase(found);
    return begin;
  }
  grow_to(end_ + size);
  return std::exchange(end_, end_ + size);
}

void ScratchFile::reserve(std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  grow_to(end_ + bytes);
}

void ScratchFile::free(std::uint64_t begin, std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  free_[rounded(bytes)].push_back(begin);
}

}  // namespace accelerate::detail
