#include "format/tensors/input_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include <accelerate/error.h>

#include "base/page_cache.h"
#include "base/text.h"

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
      file_(::open(path_.c_str(), O_RDONLY | O_CLOEXEC)),
      record_(std::move(record)),
      verified_(record_ ? record_->checksums.size() : 0) {
  if (file_ < 0) fail_to_read(path_, errno);
}

InputFile::~InputFile() {
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
    // The same file, even if another one has its name by now.
    const std::string open_file = format("/proc/self/fd/{}", file_);
    direct_.direct = ::open(open_file.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC);
    if (direct_.direct >= 0) {
      direct_.memory_alignment = direct_memory_alignment(direct_.direct);
    }
  });
  return direct_;
}

bool InputFile::is_cached(std::uint64_t begin, std::uint64_t end) const {
  return is_mostly_cached(file_, begin, end - begin);
}

}  // namespace accelerate::detail
