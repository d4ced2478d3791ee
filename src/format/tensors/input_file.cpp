#include "format/tensors/input_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>

#include <accelerate/error.h>

#include "base/files/page_cache.h"
#include "base/text/text.h"

namespace accelerate::detail {

namespace {

[[noreturn]] void fail_to_read(const std::filesystem::path& path, int error) {
  throw Error(format(
      "[files] cannot read {}: {}", path.string(), std::strerror(error)));
}

}  // namespace

InputFile::InputFile(
    std::filesystem::path path,
    std::optional<FileRecord> record)
    : path_(std::move(path)),
      file_(open_regular_file(path_, O_RDONLY)),
      record_(std::move(record)),
      verified_(record_ ? record_->checksums.size() : 0) {
  version_ = version_now();
}

InputFile::~InputFile() {
  mappable_.reset();
  if (direct_.direct >= 0) ::close(direct_.direct);
  ::close(file_);
}

void InputFile::require_read(int result) const {
  if (result == DirectReader::kEndOfFile) {
    throw CheckpointError(
        format("[checkpoint] {} is shorter than it should be", path_.string()));
  }
  if (result != 0) fail_to_read(path_, result);
}

void InputFile::read_at(std::uint64_t offset, std::span<std::byte> out) const {
  require_read(read_all(file_, offset, out));
}

std::span<const std::byte> InputFile::bytes() const {
  std::call_once(is_mapped_, [this] { mapped_.emplace(path_); });
  return mapped_->bytes();
}

const DirectReader::File& InputFile::direct() const {
  std::call_once(is_direct_open_, [this] {
    direct_.plain = file_;
    // This path names the open file, even if another one has taken its name.
    const std::string same_file = format("/proc/self/fd/{}", file_);
    direct_.direct = open_descriptor(same_file.c_str(), O_RDONLY | O_DIRECT);
    if (direct_.direct >= 0) {
      direct_.memory_alignment = direct_memory_alignment(direct_.direct);
    }
  });
  return direct_;
}

InputFile::Version InputFile::version_now() const {
  struct stat status {};
  if (::fstat(file_, &status) != 0) return {};
  return {
      status.st_size,
      status.st_mtim.tv_sec,
      status.st_mtim.tv_nsec,
      status.st_ctim.tv_sec,
      status.st_ctim.tv_nsec};
}

bool InputFile::has_changed() const {
  const Version now = version_now();
  const std::lock_guard lock(version_mutex_);
  return now != version_;
}

bool InputFile::was_written_to() const {
  Version now = version_now();
  const std::lock_guard lock(version_mutex_);
  now.changed_seconds = version_.changed_seconds;
  now.changed_nanoseconds = version_.changed_nanoseconds;
  return now != version_;
}

void InputFile::accept_changes() const {
  const Version now = version_now();
  const std::lock_guard lock(version_mutex_);
  version_ = now;
  for (std::atomic<bool>& chunk : verified_) chunk = false;
}

bool InputFile::is_verified(std::uint64_t begin, std::uint64_t end) const {
  for (std::uint64_t chunk = begin / kChunkBytes; chunk * kChunkBytes < end;
       ++chunk) {
    if (!is_verified(chunk)) return false;
  }
  return true;
}

const MappableFile& InputFile::mappable() const {
  std::call_once(is_mappable_, [this] { mappable_.emplace(file_); });
  return *mappable_;
}

bool InputFile::is_cached(std::uint64_t begin, std::uint64_t end) const {
  return is_mostly_cached(file_, begin, end - begin);
}

bool InputFile::is_completely_cached(std::uint64_t begin, std::uint64_t end)
    const {
  return detail::is_completely_cached(file_, begin, end - begin);
}

}  // namespace accelerate::detail
