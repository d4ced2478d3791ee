#include "cli/launch/machine/memory_directory.h"

#include <string>
#include <system_error>

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "base/text/text.h"

namespace accelerate::cli {

namespace {

namespace fs = std::filesystem;

constexpr const char* kMemory = "/dev/shm";

// Containers may share memory but not process ids.
std::string prefix() {
  struct stat facts {};
  const bool is_known = ::stat("/proc/self/ns/pid", &facts) == 0;
  return detail::format(
      "accelerate-cpp-{}-{}-", ::geteuid(), is_known ? facts.st_ino : 0);
}

// A directory of a launcher of this user that no longer runs. Another user
// could choose the name, but not the owner.
bool is_left_over(const fs::directory_entry& entry) {
  const std::string name = entry.path().filename().string();
  if (!name.starts_with(prefix())) return false;
  const auto launcher = detail::parse_int(name.substr(prefix().size()));
  if (!launcher || *launcher <= 0) return false;
  struct stat facts {};
  if (::lstat(entry.path().c_str(), &facts) != 0 || !S_ISDIR(facts.st_mode) ||
      facts.st_uid != ::geteuid())
    return false;
  return ::kill(static_cast<pid_t>(*launcher), 0) != 0 && errno == ESRCH;
}

}  // namespace

fs::path memory_directory_of_launcher() {
  std::error_code error;
  if (!fs::is_directory(kMemory, error)) return {};
  return fs::path(kMemory) / detail::format("{}{}", prefix(), ::getpid());
}

MemoryDirectory::MemoryDirectory(fs::path path) : path_(std::move(path)) {
  if (path_.empty()) return;
  std::error_code error;
  // Left by an earlier process with this id.
  fs::remove_all(path_, error);
  fs::directory_iterator entries(path_.parent_path(), error);
  for (; !error && entries != fs::directory_iterator();
       entries.increment(error)) {
    std::error_code ignored;
    if (is_left_over(*entries)) fs::remove_all(entries->path(), ignored);
  }
}

MemoryDirectory::~MemoryDirectory() {
  std::error_code ignored;
  if (!path_.empty()) fs::remove_all(path_, ignored);
}

}  // namespace accelerate::cli
