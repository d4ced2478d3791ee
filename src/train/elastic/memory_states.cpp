#include "train/elastic/memory_states.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <string_view>
#include <system_error>

#include <accelerate/error.h>

#include "base/text.h"
#include "format/checkpoint/checkpoint_directory.h"
#include "format/checkpoint/manifest.h"

namespace accelerate::detail {

namespace {

namespace fs = std::filesystem;

constexpr std::size_t kKept = 2;
constexpr std::string_view kPrefix = "generation_";

// Also what a save that was interrupted has left, whose name is hidden. Anything
// else in the directory is none of ours.
bool is_ours(const fs::path& path) {
  const std::string name = path.filename().string();
  return name.starts_with(kPrefix) || name.starts_with(format(".{}", kPrefix));
}

}  // namespace

StateFile state_file(const fs::path& checkpoint) {
  static_cast<void>(read_manifest(checkpoint));
  std::error_code error;
  const auto time = fs::last_write_time(checkpoint / kManifestName, error);
  if (error) {
    throw CheckpointError(
        format("[checkpoint] {}: {}", checkpoint.string(), error.message()));
  }
  return {checkpoint, time};
}

void MemoryStates::make_directory() const {
  constexpr mode_t kOwnOnly = 0700;
  if (::mkdir(directory_.c_str(), kOwnOnly) == 0) return;
  const int problem = errno;
  struct stat facts {};
  const bool is_own = problem == EEXIST &&
      ::lstat(directory_.c_str(), &facts) == 0 && S_ISDIR(facts.st_mode) &&
      facts.st_uid == ::geteuid();
  if (is_own) return;
  throw ConfigError(format(
      "[train] states cannot be kept in {}: {}; give "
      "ElasticOptions::memory_dir "
      "a directory of your own",
      directory_.string(),
      problem == EEXIST ? "it is another user's, or no directory"
                        : std::strerror(problem)));
}

fs::path MemoryStates::path_of(int generation, int number) const {
  return directory_ / format("{}{}_state_{}", kPrefix, generation, number);
}

std::vector<StateFile> MemoryStates::list() const {
  std::vector<StateFile> states;
  std::error_code error;
  fs::directory_iterator entries(directory_, error);
  for (; !error && entries != fs::directory_iterator();
       entries.increment(error)) {
    if (!entries->path().filename().string().starts_with(kPrefix)) continue;
    try {
      states.push_back(state_file(entries->path()));
    } catch (const CheckpointError&) {
      // Being removed, or damaged.
    }
  }
  std::sort(states.begin(), states.end(), [](const auto& a, const auto& b) {
    return a.time > b.time;
  });
  return states;
}

int MemoryStates::next_number() const {
  std::int64_t next = 0;
  for (const StateFile& state : list()) {
    const auto number = number_of(state.path.filename().string());
    next = std::max(next, number.value_or(-1) + 1);
  }
  return static_cast<int>(next);
}

void MemoryStates::tidy(bool parts) const {
  const std::vector<StateFile> states = list();
  std::vector<fs::path> removed;
  for (std::size_t i = kKept; i < states.size(); ++i)
    removed.push_back(states[i].path);
  std::error_code error;
  fs::directory_iterator entries(directory_, error);
  for (; parts && !error && entries != fs::directory_iterator();
       entries.increment(error)) {
    const bool is_state =
        std::any_of(states.begin(), states.end(), [&](const StateFile& state) {
          return state.path == entries->path();
        });
    if (!is_state && is_ours(entries->path()))
      removed.push_back(entries->path());
  }
  for (const fs::path& path : removed) fs::remove_all(path, error);
}

}  // namespace accelerate::detail
