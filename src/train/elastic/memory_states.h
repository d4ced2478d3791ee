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
  /// Its place among the states in memory, from 0.
  std::int64_t number = 0;
  /// The number that the project's next checkpoint had when it was saved: a
  /// checkpoint of this number or above is newer.
  std::int64_t next_checkpoint = 0;
};

/// The checkpoints that ranks keep in memory, in a directory of this run. They
/// are ordered by their numbers, never by clocks.
class MemoryStates {
 public:
  explicit MemoryStates(std::filesystem::path directory)
      : directory_(std::move(directory)) {}

  /// Makes the directory, for this user alone. Throws ConfigError if another
  /// user's is there, or if it cannot be made.
  void make_directory() const;
  /// Where a state is saved. `generation` tells those apart that were begun with
  /// one number, in a generation that ended meanwhile and in the next.
  [[nodiscard]] std::filesystem::path path_of(
      int generation,
      std::int64_t number,
      std::int64_t next_checkpoint) const;
  /// MemoryState::next_checkpoint of the state of this name, if it is one.
  [[nodiscard]] static std::optional<std::int64_t> next_checkpoint_of(
      std::string_view name);
  /// The complete ones, the newest first. Empty without the directory.
  [[nodiscard]] std::vector<MemoryState> list() const;
  /// Removes all but the newest two complete ones, and with `parts` what a save
  /// that was interrupted has left: nobody may be saving then.
  void tidy(bool parts) const;

 private:
  std::filesystem::path directory_;
};

}  // namespace accelerate::detail
