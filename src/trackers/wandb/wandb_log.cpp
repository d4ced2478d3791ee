#include "trackers/wandb/wandb_log.h"

#include <fcntl.h>
#include <unistd.h>
#include <zlib.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <utility>

#include <accelerate/error.h>

#include "base/text/text.h"

namespace accelerate::detail {

namespace {

constexpr std::size_t kLogBlockBytes = 32768;
constexpr std::size_t kFragmentHeaderBytes = 7;
// The format's name, magic number 0xbee1 and version 0.
constexpr std::string_view kWandbHeader(":W&B\xe1\xbe\0", 7);

// Fragment types: a full record, or the first, middle or last part of one.
constexpr char kFull = 1, kFirst = 2, kMiddle = 3, kLast = 4;

[[noreturn]] void throw_wandb_log_error(const std::filesystem::path& path) {
  throw Error(format(
      "[trackers] {} cannot be written: {}", path, std::strerror(errno)));
}

std::uint32_t fragment_checksum(char type, std::string_view fragment) {
  const auto bytes = [](const char* data) {
    return reinterpret_cast<const Bytef*>(data);
  };
  const uLong of_type = ::crc32(0, bytes(&type), 1);
  return static_cast<std::uint32_t>(::crc32(
      of_type, bytes(fragment.data()), static_cast<uInt>(fragment.size())));
}

}  // namespace

WandbLog::WandbLog(std::filesystem::path path)
    : path_(std::move(path)),
      file_(::open(
          path_.c_str(),
          O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC,
          0666)),
      size_(kWandbHeader.size()),
      pending_(kWandbHeader) {
  if (file_ < 0) throw_wandb_log_error(path_);
}

WandbLog::~WandbLog() {
  if (file_ < 0) return;
  if (!pending_.empty()) {
    [[maybe_unused]] const auto written =
        ::write(file_, pending_.data(), pending_.size());
  }
  ::close(file_);
}

void WandbLog::append(std::string_view record) {
  std::size_t room = kLogBlockBytes - size_ % kLogBlockBytes;
  if (room < kFragmentHeaderBytes) {
    pending_.append(room, '\0');
    size_ += room;
    room = kLogBlockBytes;
  }
  for (bool is_first = true;; is_first = false) {
    const std::size_t fits = room - kFragmentHeaderBytes;
    if (record.size() <= fits) {
      append_fragment(is_first ? kFull : kLast, record);
      return;
    }
    append_fragment(is_first ? kFirst : kMiddle, record.substr(0, fits));
    record.remove_prefix(fits);
    room = kLogBlockBytes;
  }
}

void WandbLog::append_fragment(char type, std::string_view fragment) {
  const std::uint32_t checksum = fragment_checksum(type, fragment);
  const auto add_byte = [this](std::size_t value) {
    pending_ += static_cast<char>(static_cast<unsigned char>(value));
  };
  for (unsigned shift = 0; shift < 32; shift += 8) add_byte(checksum >> shift);
  for (unsigned shift = 0; shift < 16; shift += 8)
    add_byte(fragment.size() >> shift);
  pending_ += type;
  pending_ += fragment;
  size_ += kFragmentHeaderBytes + fragment.size();
}

void WandbLog::flush() {
  while (!pending_.empty()) {
    const ssize_t written = ::write(file_, pending_.data(), pending_.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) throw_wandb_log_error(path_);
    pending_.erase(0, static_cast<std::size_t>(written));
  }
}

}  // namespace accelerate::detail
