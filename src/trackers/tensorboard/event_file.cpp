#include "trackers/tensorboard/event_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include <protozero/pbf_writer.hpp>

#include <accelerate/error.h>

#include "base/text/text.h"

namespace accelerate::detail {

namespace {

// Fields of tensorflow.Event and tensorflow.SessionLog.
constexpr protozero::pbf_tag_type kEventWallTime = 1;
constexpr protozero::pbf_tag_type kEventStep = 2;
constexpr protozero::pbf_tag_type kEventFileVersion = 3;
constexpr protozero::pbf_tag_type kEventSummary = 5;
constexpr protozero::pbf_tag_type kEventSessionLog = 7;
constexpr protozero::pbf_tag_type kSessionLogStatus = 1;
constexpr std::int32_t kSessionStart = 1;

[[noreturn]] void throw_cannot_write(const std::filesystem::path& path) {
  throw Error(format(
      "[trackers] {} cannot be written: {}", path, std::strerror(errno)));
}

std::string event_host_name() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0 || name[0] == '\0')
    return "localhost";
  return name.data();
}

std::string little_endian(std::uint64_t value, std::size_t num_bytes) {
  std::string bytes;
  for (std::size_t i = 0; i < num_bytes; ++i) {
    bytes += static_cast<char>(static_cast<unsigned char>(value >> (8 * i)));
  }
  return bytes;
}

// What each byte contributes to the remainder; the polynomial's bits reversed.
constexpr std::array<std::uint32_t, 256> castagnoli_table() {
  constexpr std::uint32_t kPolynomial = 0x82f63b78;
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t remainder = i;
    for (int bit = 0; bit < 8; ++bit) {
      remainder =
          (remainder >> 1U) ^ ((remainder & 1U) != 0 ? kPolynomial : 0U);
    }
    table.at(i) = remainder;
  }
  return table;
}

}  // namespace

EventFile::EventFile(
    const std::filesystem::path& directory,
    const EventFileOptions& options) {
  std::error_code problem;
  std::filesystem::create_directories(directory, problem);
  std::array<char, 32> seconds{};
  std::snprintf(
      seconds.data(),
      seconds.size(),
      "%010lld",
      static_cast<long long>(options.begin));
  // The last number makes names unique within a process, even if several
  // trackers begin in the same second.
  for (int number = 0; file_ < 0; ++number) {
    path_ = directory /
        format("events.out.tfevents.{}.{}.{}.{}{}",
               seconds.data(),
               event_host_name(),
               ::getpid(),
               number,
               options.name_suffix);
    file_ = ::open(
        path_.c_str(),
        O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC,
        0666);
    if (file_ < 0 && errno != EEXIST) throw_cannot_write(path_);
  }
  std::string event;
  protozero::pbf_writer version(event);
  version.add_double(kEventWallTime, options.begin);
  if (options.purge_step) version.add_int64(kEventStep, *options.purge_step);
  version.add_string(kEventFileVersion, "brain.Event:2");
  add_frame(event);
  if (options.purge_step) {
    event.clear();
    protozero::pbf_writer restart(event);
    restart.add_double(kEventWallTime, options.begin);
    restart.add_int64(kEventStep, *options.purge_step);
    protozero::pbf_writer session(restart, kEventSessionLog);
    session.add_enum(kSessionLogStatus, kSessionStart);
  }
  if (options.purge_step) add_frame(event);
  flush();
}

EventFile::~EventFile() {
  if (file_ < 0) return;
  if (!pending_.empty()) {
    [[maybe_unused]] const auto written =
        ::write(file_, pending_.data(), pending_.size());
  }
  ::close(file_);
}

void EventFile::add(
    std::string_view summary,
    double wall_time,
    std::optional<std::int64_t> step) {
  std::string event;
  protozero::pbf_writer writer(event);
  writer.add_double(kEventWallTime, wall_time);
  if (step) writer.add_int64(kEventStep, *step);
  writer.add_message(kEventSummary, summary.data(), summary.size());
  add_frame(event);
}

void EventFile::add_frame(std::string_view event) {
  const std::string length = little_endian(event.size(), 8);
  pending_ += length;
  pending_ += little_endian(masked_crc32c(length), 4);
  pending_ += event;
  pending_ += little_endian(masked_crc32c(event), 4);
}

void EventFile::flush() {
  while (!pending_.empty()) {
    const ssize_t written = ::write(file_, pending_.data(), pending_.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) throw_cannot_write(path_);
    pending_.erase(0, static_cast<std::size_t>(written));
  }
}

std::uint32_t masked_crc32c(std::string_view bytes) {
  static constexpr std::array<std::uint32_t, 256> kTable = castagnoli_table();
  std::uint32_t remainder = 0xffffffff;
  for (const char each : bytes) {
    const auto low = static_cast<unsigned char>(
        remainder ^ static_cast<unsigned char>(each));
    remainder = (remainder >> 8U) ^ kTable.at(low);
  }
  return std::rotr(~remainder, 15) + 0xa282ead8;
}

}  // namespace accelerate::detail
