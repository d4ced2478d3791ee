#include "train/elastic/memory_states.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "format/checkpoint/checkpoint_directory.h"

namespace accelerate::detail {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "generation_";
constexpr std::string_view kNextCheckpoint = "_before_checkpoint_";
constexpr std::string_view kNumber = "_state_";

// Includes what an interrupted save left, under a hidden name. Other files in
// the directory do not belong to this run.
bool is_ours(std::string_view name) {
  return name.starts_with(kPrefix) || name.starts_with(format(".{}", kPrefix));
}

}  // namespace

void MemoryStates::make_directory() const {
  constexpr mode_t kOwnOnly = 0700;
  if (::mkdir(directory_.c_str(), kOwnOnly) == 0) return;
  const int problem = errno;
  struct stat facts {};
  const bool is_own = problem == EEXIST &&
      ::lstat(directory_.c_str(), &facts) == 0 && S_ISDIR(facts.st_mode) &&
      facts.st_uid == ::geteuid();
  // A save into a full directory reports that on all ranks.
  if (is_own || problem == ENOSPC || problem == EDQUOT) return;
  throw ConfigError(format(
      "[train] states cannot be kept in {}: {}; set ElasticOptions::memory_dir "
      "to a directory of your own",
      directory_.string(),
      problem == EEXIST ? "it is another user's, or not a directory"
                        : std::strerror(problem)));
}

fs::path MemoryStates::path_of(
    int generation,
    std::int64_t number,
    std::int64_t next_checkpoint) const {
  return directory_ /
      format("{}{}{}{}{}{}",
             kPrefix,
             generation,
             kNextCheckpoint,
             next_checkpoint,
             kNumber,
             number);
}

std::optional<std::int64_t> MemoryStates::next_checkpoint_of(
    std::string_view name) {
  return number_of(name.substr(0, name.rfind(kNumber)));
}

std::vector<MemoryState> MemoryStates::list() const {
  std::vector<MemoryState> states;
  for (const CheckpointEntry& entry : list_checkpoints(directory_)) {
    const std::string_view name = entry.name;
    if (!name.starts_with(kPrefix) || entry.kind != CheckpointKind::complete)
      continue;
    const auto next = next_checkpoint_of(name);
    if (entry.number && next)
      states.push_back({directory_ / name, *entry.number, *next});
  }
  std::ranges::reverse(states);
  return states;
}

void MemoryStates::tidy(bool parts, std::size_t num_kept) const {
  const std::vector<MemoryState> states = list();
  std::vector<fs::path> removed;
  for (std::size_t i = num_kept; i < states.size(); ++i)
    removed.push_back(states[i].path);
  std::error_code error;
  fs::directory_iterator entries(directory_, error);
  for (; parts && !error && entries != fs::directory_iterator();
       entries.increment(error)) {
    const fs::path& path = entries->path();
    const bool is_state = std::ranges::any_of(
        states, [&](const MemoryState& state) { return state.path == path; });
    if (!is_state && is_ours(path.filename().string())) removed.push_back(path);
  }
  for (const fs::path& path : removed) fs::remove_all(path, error);
}

}  // namespace accelerate::detail
