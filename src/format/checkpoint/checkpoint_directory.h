#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace accelerate::detail {

/// The name that Accelerate gives the directory of checkpoints in a project.
inline constexpr std::string_view kCheckpointsDirectory = "checkpoints";
inline constexpr std::string_view kCheckpointPrefix = "checkpoint_";

enum class CheckpointKind {
  /// Complete, according to its manifest.
  complete,
  /// Written by Python's Accelerate, which does not record whether it is
  /// complete.
  accelerate,
  /// Incomplete, damaged, or of a newer version.
  unusable,
};

/// A directory among checkpoints.
struct CheckpointEntry {
  std::string name;
  /// The number at the end of its name, which orders checkpoints; nothing if
  /// there are no digits.
  std::optional<std::int64_t> number;
  CheckpointKind kind = CheckpointKind::unusable;
  /// The reason why it is unusable.
  std::string complaint;
};

/// The last run of digits in `name`. Nothing if there is none, or if the number
/// does not fit.
std::optional<std::int64_t> number_of(std::string_view name);

/// The visible directories in `directory`, sorted by number, then by name;
/// those without a number come first. Empty if `directory` does not exist.
/// Reads manifests, not data.
std::vector<CheckpointEntry> list_checkpoints(
    const std::filesystem::path& directory);

/// The last entry that is usable and has a number; null if there is none.
const CheckpointEntry* newest_of(const std::vector<CheckpointEntry>& entries);

/// The effect of a save under `name` on other checkpoints.
struct RetentionPlan {
  /// It replaces a checkpoint of that name.
  bool replaces = false;
  /// Names to delete once the save is complete.
  std::vector<std::string> deleted;
};

/// Accelerate's rule: `total_limit` of the usable checkpoints with a number,
/// including the new one, are kept, and those with the lowest numbers are
/// deleted. Never deletes unusable entries or entries without a number. Returns
/// nothing if a directory named `name` exists and is not to be deleted: such a
/// save must be rejected.
std::optional<RetentionPlan> plan_retention(
    const std::vector<CheckpointEntry>& entries,
    const std::string& name,
    std::optional<int> total_limit);

}  // namespace accelerate::detail
