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
  /// The number that ends its name, which orders checkpoints; nothing without
  /// digits.
  std::optional<std::int64_t> number;
  CheckpointKind kind = CheckpointKind::unusable;
  /// The reason why it is unusable.
  std::string complaint;
};

/// The last run of digits in `name`. Nothing if there is none, or if it does
/// not fit.
std::optional<std::int64_t> number_of(std::string_view name);

/// The visible directories in `directory`, by number, then by name, those
/// without a number first. Empty if it does not exist. Reads manifests, not
/// data.
std::vector<CheckpointEntry> list_checkpoints(
    const std::filesystem::path& directory);

/// The last entry that is usable and has a number; null if there is none.
const CheckpointEntry* newest_of(const std::vector<CheckpointEntry>& entries);

/// The effects of a save under `name` on other checkpoints.
struct RetentionPlan {
  /// It replaces one of that name.
  bool replaces = false;
  /// Names to be deleted once the save is complete.
  std::vector<std::string> deleted;
};

/// Accelerate's rule: of the usable checkpoints with a number, including the
/// new one, `total_limit` remain, and those with the lowest numbers are
/// deleted. Never deletes entries without a number or unusable ones. Returns
/// nothing if a directory of that name exists and is not among those to be
/// deleted: such a save must be refused.
std::optional<RetentionPlan> plan_retention(
    const std::vector<CheckpointEntry>& entries,
    const std::string& name,
    std::optional<int> total_limit);

}  // namespace accelerate::detail
