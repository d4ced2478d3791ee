#include "checkpoint/run/choose_checkpoint.h"

#include <string>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "checkpoint/run/checkpoints.h"
#include "format/checkpoint/checkpoint_directory.h"
#include "format/checkpoint/commit.h"

namespace accelerate::detail {

namespace {

void warn_passed_over(
    const CheckpointState& checkpoints,
    const std::filesystem::path& base,
    const std::vector<CheckpointEntry>& entries,
    const CheckpointEntry* newest) {
  std::string passed_over;
  for (const CheckpointEntry& entry : entries) {
    if (entry.kind == CheckpointKind::unusable &&
        (newest == nullptr || entry.number > newest->number)) {
      passed_over += format("\n  {}: {}", entry.name, entry.complaint);
    }
  }
  if (passed_over.empty()) return;
  checkpoints.world.logger().log(
      LogLevel::warning,
      "checkpoint",
      format(
          "the newest complete checkpoint in {} is {}; passed over:{}",
          base.string(),
          newest == nullptr ? "none" : newest->name,
          passed_over));
}

}  // namespace

std::filesystem::path find_newest_checkpoint(
    const CheckpointState& checkpoints,
    const std::set<std::string>& damaged) {
  const ProjectConfiguration& project = checkpoints.project;
  if (!project.automatic_checkpoint_naming || project.project_dir.empty()) {
    throw ConfigError(
        "[checkpoint] load_state() needs a directory, or "
        "ProjectConfiguration::automatic_checkpoint_naming and a project_dir");
  }
  const std::filesystem::path base =
      std::filesystem::path(project.project_dir) / kCheckpointsDirectory;
  if (std::filesystem::is_directory(base)) {
    restore_put_aside(*checkpoints.disk, base);
  }
  auto entries = list_checkpoints(base);
  std::erase_if(entries, [&](const CheckpointEntry& entry) {
    return damaged.contains(entry.name);
  });
  const CheckpointEntry* const newest = newest_of(entries);
  // Unusable checkpoints were reported by the first of several attempts.
  if (damaged.empty()) warn_passed_over(checkpoints, base, entries, newest);
  return newest == nullptr ? std::filesystem::path() : base / newest->name;
}

void require_directory(
    const CheckpointState& checkpoints,
    const std::filesystem::path& input_dir) {
  const std::filesystem::path parent =
      std::filesystem::absolute(input_dir).parent_path();
  if (!std::filesystem::exists(input_dir) &&
      std::filesystem::is_directory(parent)) {
    restore_put_aside(*checkpoints.disk, parent);
  }
  if (std::filesystem::is_directory(input_dir)) return;
  throw CheckpointError(format(
      "[checkpoint] {} is not a directory; give load_state() the directory of "
      "a checkpoint",
      input_dir.string()));
}

}  // namespace accelerate::detail
