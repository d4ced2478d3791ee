#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

namespace accelerate::detail {

/// A complete checkpoint and when it was committed.
struct StateFile {
  std::filesystem::path path;
  std::filesystem::file_time_type time;
};

/// When a checkpoint was committed. Throws CheckpointError if it is incomplete.
StateFile state_file(const std::filesystem::path& checkpoint);

/// The checkpoints that ranks keep in memory, in a directory of this run.
class MemoryStates {
 public:
  explicit MemoryStates(std::filesystem::path directory)
      : directory_(std::move(directory)) {}

  /// Makes the directory, for this user alone. Throws ConfigError if another
  /// user's is there, or if it cannot be made.
  void make_directory() const;
  /// The path of save number `number` of a generation.
  [[nodiscard]] std::filesystem::path path_of(int generation, int number) const;
  /// The complete ones, the newest first.
  [[nodiscard]] std::vector<StateFile> list() const;
  /// One above the highest number of a save that is there.
  [[nodiscard]] int next_number() const;
  /// Removes all but the newest two complete ones, and with `parts` what a save
  /// that was interrupted has left: nobody may be saving then.
  void tidy(bool parts) const;

 private:
  std::filesystem::path directory_;
};

}  // namespace accelerate::detail
