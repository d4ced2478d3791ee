#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace accelerate::detail {

/// Accelerate's name of the folder of checkpoints in a project's.
inline constexpr std::string_view kCheckpointsFolder = "checkpoints";
inline constexpr std::string_view kCheckpointPrefix = "checkpoint_";

enum class CheckpointKind {
  /// Complete, by its manifest.
  complete,
  /// As Python's Accelerate leaves them; whether it is complete nobody knows.
  accelerate,
  /// Torn, damaged, or of a newer version.
  unusable,
};

/// A folder among checkpoints.
struct CheckpointEntry {
  std::string name;
  /// What its name ends in, which orders checkpoints; nothing without digits.
  std::optional<std::int64_t> number;
  CheckpointKind kind = CheckpointKind::unusable;
  /// Why it is unusable.
  std::string complaint;
};

/// The last run of digits in `name`. Nothing without, or if it does not fit.
std::optional<std::int64_t> number_of(std::string_view name);

/// The visible folders in `folder`, by number, then by name, those without a
/// number first. None if it does not exist. Reads manifests, no data.
std::vector<CheckpointEntry> list_checkpoints(
    const std::filesystem::path& folder);

/// The last that is not unusable and has a number; null if there is none.
const CheckpointEntry* newest_of(const std::vector<CheckpointEntry>& entries);

/// What a save under `name` does to the others.
struct RetentionPlan {
  /// It replaces one of that name.
  bool replaces = false;
  /// To be deleted once the save is complete.
  std::vector<std::string> deleted;
};

/// Accelerate's rule: of the usable checkpoints with a number, the new one
/// counted, `total_limit` remain, and the lowest numbers go. What has no number
/// or is unusable is nobody's to delete. Nothing if a folder of that name is
/// there and is not one of those that go: such a save must be refused.
std::optional<RetentionPlan> plan_retention(
    const std::vector<CheckpointEntry>& entries,
    const std::string& name,
    std::optional<int> total_limit);

}  // namespace accelerate::detail
