#include "kernels/device/program_cache.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

#include <accelerate/error.h>

#include "base/files/files.h"
#include "base/text/encoding.h"
#include "base/text/text.h"

namespace accelerate::detail {

namespace {

constexpr std::string_view kFirstLine = "accelerate-cpp kernels 1";
constexpr std::uint64_t kMostCachedBytes = 1ULL << 26U;
constexpr mode_t kWritableByOthers = S_IWGRP | S_IWOTH;

// The file of a program: the format, the key, the hash of the program, each
// with a newline, and the program.
std::string file_of(std::string_view key, std::string_view program) {
  return format("{}\n{}\n{}\n{}", kFirstLine, key, hash_text(program), program);
}

std::optional<std::string> program_in(
    std::string_view file,
    std::string_view key) {
  const std::string head = format("{}\n{}\n", kFirstLine, key);
  constexpr std::size_t kHashDigits = 16;
  if (!file.starts_with(head) || file.size() < head.size() + kHashDigits + 1)
    return std::nullopt;
  const std::string_view hash = file.substr(head.size(), kHashDigits);
  const std::string_view program = file.substr(head.size() + kHashDigits + 1);
  if (file[head.size() + kHashDigits] != '\n' || program.empty() ||
      hash_text(program) != hash) {
    return std::nullopt;
  }
  return std::string(program);
}

std::optional<std::string> read_program(
    const std::filesystem::path& path,
    std::string_view key) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0 || !S_ISREG(status.st_mode) ||
      status.st_uid != ::geteuid() ||
      (status.st_mode & kWritableByOthers) != 0) {
    return std::nullopt;
  }
  try {
    return program_in(read_file(path, kMostCachedBytes), key);
  } catch (const Error&) {
    // Another process may have removed it.
    return std::nullopt;
  }
}

}  // namespace

std::string hash_text(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325U;
  for (const char each : text)
    hash = (hash ^ static_cast<unsigned char>(each)) * 0x100000001b3U;
  return hexadecimal(hash);
}

ProgramCache::ProgramCache(std::filesystem::path directory)
    : directory_(std::move(directory)) {}

std::filesystem::path ProgramCache::path_of(std::string_view key) const {
  return directory_ / (hash_text(key) + ".kernels");
}

std::string ProgramCache::problem() const {
  std::error_code code;
  std::filesystem::create_directories(directory_.parent_path(), code);
  if (::mkdir(directory_.c_str(), S_IRWXU) != 0 && errno != EEXIST)
    return format("{} cannot be created: {}", directory_, std::strerror(errno));
  struct stat status {};
  if (::lstat(directory_.c_str(), &status) != 0)
    return format("{} cannot be read: {}", directory_, std::strerror(errno));
  if (!S_ISDIR(status.st_mode))
    return format("{} must be a directory, but is not", directory_);
  if (status.st_uid != ::geteuid())
    return format(
        "{} must belong to user {}, but belongs to user {}",
        directory_,
        ::geteuid(),
        status.st_uid);
  if ((status.st_mode & kWritableByOthers) != 0)
    return format(
        "{} must be writable by its user only, but others may write to it",
        directory_);
  return "";
}

std::string ProgramCache::get(
    std::string_view key,
    const std::function<std::string()>& make) const {
  const bool is_usable = problem().empty();
  const std::filesystem::path path = path_of(key);
  if (is_usable) {
    if (auto program = read_program(path, key)) return *std::move(program);
  }
  std::string program = make();
  if (is_usable) {
    try {
      replace_file(path, file_of(key, program));
    } catch (const Error&) {
      // On a full or read-only disk, the program is compiled again next time.
    }
  }
  return program;
}

}  // namespace accelerate::detail
