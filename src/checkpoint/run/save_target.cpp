#include "checkpoint/run/save_target.h"

#include <limits>
#include <string>
#include <system_error>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "checkpoint/run/checkpoints.h"
#include "format/checkpoint/checkpoint_directory.h"

namespace accelerate::detail {

namespace {

// The iteration after a save must also be a valid number.
constexpr std::int64_t kHighestIteration =
    std::numeric_limits<std::int64_t>::max() - 1;

std::filesystem::path checkpoints_of(const ProjectConfiguration& project) {
  return std::filesystem::path(project.project_dir) / kCheckpointsDirectory;
}

std::vector<std::filesystem::path> deleted_by(
    const ProjectConfiguration& project,
    const std::filesystem::path& path,
    const std::vector<CheckpointEntry>& entries) {
  const std::filesystem::path base = path.parent_path();
  const auto plan =
      plan_retention(entries, path.filename().string(), project.total_limit);
  if (!plan) {
    throw ConfigError(format(
        "[checkpoint] {} already exists; set ProjectConfiguration::iteration "
        "above those of existing checkpoints, or leave it unset; if another "
        "program made it, give each program a project_dir of its own",
        path.string()));
  }
  std::vector<std::filesystem::path> deleted;
  for (const std::string& old : plan->deleted) deleted.push_back(base / old);
  return deleted;
}

// The number after the highest existing one.
std::int64_t next_iteration(
    const std::filesystem::path& base,
    const std::vector<CheckpointEntry>& entries) {
  if (entries.empty() || !entries.back().number) return 0;
  const std::int64_t highest = *entries.back().number;
  if (highest < kHighestIteration) return highest + 1;
  throw ConfigError(format(
      "[checkpoint] {} has the highest possible number, so no checkpoint can "
      "follow it; rename it, or set ProjectConfiguration::iteration",
      (base / entries.back().name).string()));
}

// Skips numbers that are taken by files, not directories.
void pass_over_files(
    SaveTarget& target,
    const std::filesystem::path& base,
    const Logger& logger) {
  while (true) {
    target.path = base / format("{}{}", kCheckpointPrefix, target.iteration);
    std::error_code code;
    const auto status = std::filesystem::status(target.path, code);
    if (std::filesystem::is_directory(status) ||
        !std::filesystem::exists(std::filesystem::symlink_status(target.path)))
      return;
    logger.log(
        LogLevel::warning,
        "checkpoint",
        format(
            "{} is a file, not a checkpoint; the next number is taken",
            target.path.string()));
    if (++target.iteration > kHighestIteration) return;
  }
}

SaveTarget choose_target(
    const ProjectConfiguration& project,
    const std::filesystem::path& output_dir,
    const Logger& logger) {
  if (project.iteration &&
      (*project.iteration < 0 || *project.iteration > kHighestIteration)) {
    throw ConfigError(format(
        "[checkpoint] ProjectConfiguration::iteration must be from 0 to {}, "
        "but is {}",
        kHighestIteration,
        *project.iteration));
  }
  if (!output_dir.empty()) {
    return {output_dir, project.iteration.value_or(0)};
  }
  if (!project.automatic_checkpoint_naming) {
    throw ConfigError(
        "[checkpoint] save_state() needs a directory, or "
        "ProjectConfiguration::automatic_checkpoint_naming and a project_dir");
  }
  if (project.project_dir.empty()) {
    throw ConfigError(
        "[checkpoint] automatic_checkpoint_naming needs a project_dir");
  }
  require_valid(project);
  const std::filesystem::path base = checkpoints_of(project);
  const auto entries = list_checkpoints(base);
  SaveTarget target;
  target.iteration =
      project.iteration ? *project.iteration : next_iteration(base, entries);
  pass_over_files(target, base, logger);
  target.deleted = deleted_by(project, target.path, entries);
  return target;
}

}  // namespace

void require_valid(const ProjectConfiguration& project) {
  std::vector<std::string> complaints;
  if (project.total_limit && *project.total_limit < 1) {
    complaints.push_back(format(
        "[checkpoint] total_limit must be at least 1, or unset to keep every "
        "checkpoint, but is {}",
        *project.total_limit));
  }
  if (project.iteration && *project.iteration < 0) {
    complaints.push_back(format(
        "[checkpoint] iteration must be at least 0, but is {}",
        *project.iteration));
  }
  if (!complaints.empty()) throw ConfigError(join(complaints, "\n"));
}

std::vector<std::filesystem::path> checkpoints_to_prune(
    const ProjectConfiguration& project,
    const std::filesystem::path& path) {
  return deleted_by(project, path, list_checkpoints(path.parent_path()));
}

SaveTarget agree_on_target(
    CheckpointState& checkpoints,
    const std::filesystem::path& output_dir,
    const SaveStateOptions& options) {
  SaveTarget target;
  std::string decision;
  if (checkpoints.agreement.is_leader()) {
    try {
      const bool is_skipped =
          options.when_busy == WhenBusy::skip && checkpoints.saver.is_busy();
      // The previous save adds a checkpoint and deletes others, so it must end
      // before the directory is examined.
      if (!is_skipped) checkpoints.saver.join();
      target = choose_target(
          checkpoints.project, output_dir, checkpoints.world.logger());
      target.is_skipped = is_skipped;
      decision = format(
          "{}{} {}",
          target.is_skipped ? "skip " : "save ",
          target.iteration,
          target.path.string());
    } catch (const Error& error) {
      decision = format("refuse {}", error.what());
    }
  }
  decision = checkpoints.agreement.decide(decision, "save_state");
  const std::string verdict = decision.substr(0, decision.find(' '));
  decision.erase(0, verdict.size() + 1);
  if (verdict == "refuse") throw ConfigError(decision);
  target.is_skipped = verdict == "skip";
  target.iteration =
      parse_int(decision.substr(0, decision.find(' '))).value_or(0);
  target.path = decision.substr(decision.find(' ') + 1);
  if (checkpoints.machine_directory) {
    target.path = *checkpoints.machine_directory / target.path.filename();
    return target;
  }
  const ProjectConfiguration& project = checkpoints.project;
  // The project's directory may differ between nodes; the name may not.
  if (project.save_on_each_node && output_dir.empty() &&
      !project.project_dir.empty()) {
    target.path = checkpoints_of(project) / target.path.filename();
  }
  return target;
}

}  // namespace accelerate::detail
