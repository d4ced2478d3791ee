#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string_view>
#include <vector>

namespace accelerate::detail {

/// A complete state in memory.
struct MemoryState {
  std::filesystem::path path;
  /// Its position among the states in memory, from 0.
  std::int64_t number = 0;
  /// The number of the project's next checkpoint when it was saved: a
  /// checkpoint with this number or above is newer.
  std::int64_t next_checkpoint = 0;
};

/// The checkpoints that ranks keep in memory, in a directory of this run,
/// ordered by their numbers, never by clocks.
class MemoryStates {
 public:
  static constexpr std::size_t kKept = 2;

  explicit MemoryStates(std::filesystem::path directory)
      : directory_(std::move(directory)) {}

  /// Creates the directory, for this user only. Throws ConfigError if it
  /// belongs to another user or cannot be created.
  void make_directory() const;
  /// Where a state is saved. `generation` distinguishes states that were begun
  /// with the same number in a generation that has since ended and in the next
  /// one.
  [[nodiscard]] std::filesystem::path path_of(
      int generation,
      std::int64_t number,
      std::int64_t next_checkpoint) const;
  /// MemoryState::next_checkpoint of the state with this name; nothing if it is
  /// not one.
  [[nodiscard]] static std::optional<std::int64_t> next_checkpoint_of(
      std::string_view name);
  /// The complete states, newest first. Empty if the directory does not exist.
  [[nodiscard]] std::vector<MemoryState> list() const;
  /// Removes all but the newest `num_kept` complete states, and with `parts`
  /// also what an interrupted save left; no save may then be in progress.
  void tidy(bool parts, std::size_t num_kept = kKept) const;

 private:
  std::filesystem::path directory_;
};

}  // namespace accelerate::detail
