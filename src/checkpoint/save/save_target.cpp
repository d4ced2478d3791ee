#include "checkpoint/save/save_target.h"

#include <string>
#include <vector>

#include <accelerate/error.h>

#include "base/text.h"
#include "checkpoint/checkpoints.h"
#include "format/checkpoint/checkpoint_directory.h"

namespace accelerate::detail {

namespace {

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
        "above those of existing checkpoints, or leave it unset",
        path.string()));
  }
  std::vector<std::filesystem::path> deleted;
  for (const std::string& old : plan->deleted) deleted.push_back(base / old);
  return deleted;
}

SaveTarget choose_target(
    const ProjectConfiguration& project,
    const std::filesystem::path& output_dir) {
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
  const std::filesystem::path base =
      std::filesystem::path(project.project_dir) / kCheckpointsDirectory;
  const auto entries = list_checkpoints(base);
  const std::int64_t highest =
      entries.empty() ? -1 : entries.back().number.value_or(-1);
  SaveTarget target;
  target.iteration = project.iteration.value_or(highest + 1);
  target.path = base / format("{}{}", kCheckpointPrefix, target.iteration);
  target.deleted = deleted_by(project, target.path, entries);
  return target;
}

}  // namespace

void require_valid(const ProjectConfiguration& project) {
  std::vector<std::string> complaints;
  if (project.total_limit && *project.total_limit < 1) {
    complaints.push_back(format(
        "[checkpoint] total_limit is {}; it is at least 1, or leave it unset "
        "to keep every checkpoint",
        *project.total_limit));
  }
  if (project.iteration && *project.iteration < 0) {
    complaints.push_back(format(
        "[checkpoint] iteration is {}; it is at least 0", *project.iteration));
  }
  if (!complaints.empty()) throw ConfigError(join(complaints, "\n"));
}

std::vector<std::filesystem::path> deleted_by_saving(
    const ProjectConfiguration& project,
    const std::filesystem::path& path) {
  return deleted_by(project, path, list_checkpoints(path.parent_path()));
}

SaveTarget agree_on_target(
    Checkpoints& checkpoints,
    const std::filesystem::path& output_dir,
    const SaveStateOptions& options) {
  SaveTarget target;
  std::string decision;
  if (checkpoints.agreement.is_leader()) {
    try {
      target = choose_target(checkpoints.project, output_dir);
      target.is_skipped =
          options.when_busy == WhenBusy::skip && checkpoints.saver.is_busy();
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
  return target;
}

}  // namespace accelerate::detail
