#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include <accelerate/checkpoint.h>

namespace accelerate::detail {

struct CheckpointState;

/// The directory of a save and the checkpoints that it replaces.
struct SaveTarget {
  std::filesystem::path path;
  std::int64_t iteration = 0;
  /// Automatic checkpoints to delete once this one is complete.
  std::vector<std::filesystem::path> deleted = {};
  /// True if nothing is saved because another save is still being written.
  bool is_skipped = false;
};

/// Throws ConfigError with everything that is wrong.
void require_valid(const ProjectConfiguration& project);

/// Rank 0 chooses, because ranks may see the directory differently; `deleted`
/// is set only there. With save_on_each_node, a path from the project is in
/// each rank's own project_dir. Throws ConfigError on all ranks if there is
/// nowhere to save.
SaveTarget agree_on_target(
    CheckpointState& checkpoints,
    const std::filesystem::path& output_dir,
    const SaveStateOptions& options);

/// Returns the automatic checkpoints that a save to `path` deletes. Throws
/// ConfigError if such a save is not allowed.
std::vector<std::filesystem::path> checkpoints_to_prune(
    const ProjectConfiguration& project,
    const std::filesystem::path& path);

}  // namespace accelerate::detail
