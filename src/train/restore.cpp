#include <accelerate/accelerator.h>

#include <algorithm>
#include <utility>

#include <torch/nn/module.h>

#include <accelerate/error.h>

#include "base/text.h"
#include "checkpoint/source.h"
#include "format/checkpoint_folder.h"
#include "format/commit.h"
#include "train/checkpoints.h"
#include "train/restoration.h"
#include "train/session.h"

namespace accelerate {

namespace {

using detail::Checkpoints;
using detail::concat;
using detail::MatchRules;
using detail::Session;

// The newest complete checkpoint of the project, said which were passed over;
// empty if there is none.
std::filesystem::path find_newest(const Session& session) {
  const Checkpoints& checkpoints = *session.checkpoints;
  const ProjectConfiguration& project = checkpoints.project;
  if (!project.automatic_checkpoint_naming || project.project_dir.empty()) {
    throw ConfigError(
        "[checkpoint] load_state() needs a folder, or "
        "ProjectConfiguration::automatic_checkpoint_naming and a project_dir");
  }
  const std::filesystem::path base =
      std::filesystem::path(project.project_dir) / detail::kCheckpointsFolder;
  if (std::filesystem::is_directory(base)) {
    detail::restore_put_aside(*checkpoints.disk, base);
  }
  const auto entries = detail::list_checkpoints(base);
  const detail::CheckpointEntry* const newest = detail::newest_of(entries);
  std::string passed_over;
  for (const auto& entry : entries) {
    if (entry.kind == detail::CheckpointKind::unusable &&
        (newest == nullptr || entry.number > newest->number)) {
      passed_over += concat("\n  ", entry.name, ": ", entry.complaint);
    }
  }
  if (!passed_over.empty()) {
    session.world.logger().log(
        LogLevel::warning,
        "checkpoint",
        concat(
            "the newest complete checkpoint in ",
            base.string(),
            " is ",
            newest == nullptr ? "none" : newest->name,
            "; passed over:",
            passed_over));
  }
  return newest == nullptr ? std::filesystem::path() : base / newest->name;
}

std::filesystem::path choose_newest(const Session& session) {
  const std::filesystem::path newest = find_newest(session);
  if (newest.empty()) {
    throw CheckpointError(concat(
        "[checkpoint] there is no complete checkpoint in ",
        session.checkpoints->project.project_dir,
        "/",
        detail::kCheckpointsFolder));
  }
  return newest;
}

std::filesystem::path choose_source(
    const Session& session,
    const std::filesystem::path& input_dir) {
  if (input_dir.empty()) return choose_newest(session);
  const std::filesystem::path parent =
      std::filesystem::absolute(input_dir).parent_path();
  if (!std::filesystem::exists(input_dir) &&
      std::filesystem::is_directory(parent)) {
    detail::restore_put_aside(*session.checkpoints->disk, parent);
  }
  if (!std::filesystem::is_directory(input_dir)) {
    throw CheckpointError(concat(
        "[checkpoint] ",
        input_dir.string(),
        " is no folder; load_state() was "
        "told to load it"));
  }
  return input_dir;
}

// Of this rank, if as many processes saved; else nothing.
std::optional<StateDict> own_rank_state(
    const Session& session,
    const detail::CheckpointSource& checkpoint) {
  if (checkpoint.num_processes == session.world.size()) {
    return checkpoint.rank_state;
  }
  session.world.logger().log_once_per_world(
      LogLevel::warning,
      "checkpoint",
      concat(
          checkpoint.folder.string(),
          " was saved by ",
          checkpoint.num_processes,
          " processes and is loaded by ",
          session.world.size(),
          "; random states are left as they are"));
  return std::nullopt;
}

template <class Body>
std::string failure_of(Body&& body) {
  try {
    std::forward<Body>(body)();
    return {};
  } catch (const std::exception& error) {
    return *error.what() == '\0' ? "unknown" : error.what();
  }
}

}  // namespace

std::optional<std::filesystem::path> Accelerator::latest_checkpoint() const {
  Session& session = *session_;
  require_no_join(session, "latest_checkpoint()");
  Checkpoints& checkpoints = *session.checkpoints;
  detail::require_same_call(session, "latest_checkpoint", "");
  checkpoints.saver.wait();
  std::filesystem::path newest;
  const bool looks =
      checkpoints.calls->is_leader() || checkpoints.project.save_on_each_node;
  const std::string failure = failure_of([&] {
    if (looks) newest = find_newest(session);
  });
  detail::require_success(session, failure, "latest_checkpoint", "");
  const std::string told =
      checkpoints.calls->tell(newest.string(), "latest_checkpoint");
  if (!checkpoints.project.save_on_each_node) newest = told;
  if (newest.empty()) return std::nullopt;
  return newest;
}

void Accelerator::load_state(const LoadStateOptions& options) const {
  load_state(std::filesystem::path(), options);
}

void Accelerator::load_state(
    const std::filesystem::path& input_dir,
    const LoadStateOptions& options) const {
  Session& session = *session_;
  require_no_join(session, "load_state()");
  Checkpoints& checkpoints = *session.checkpoints;
  detail::require_same_call(session, "load_state", input_dir.string());
  checkpoints.saver.wait();

  const MatchRules rules{options.strict, options.skip, options.allow_missing};
  std::filesystem::path folder;
  std::optional<detail::CheckpointSource> checkpoint;
  std::optional<StateDict> rank_state;
  detail::LoadPlan plan;
  LoadHookContext context;
  for (const auto& model : detail::models_of(session)) {
    context.models.push_back(model->module);
  }
  context.load_weights.assign(context.models.size(), true);

  // Rank 0 chooses, where all see the same folder.
  std::string failure = failure_of([&] {
    if (checkpoints.calls->is_leader() ||
        checkpoints.project.save_on_each_node) {
      folder = choose_source(session, input_dir);
    }
  });
  detail::require_success(session, failure, "load_state", "");
  const std::string chosen =
      checkpoints.calls->tell(folder.string(), "load_state");
  if (!checkpoints.project.save_on_each_node) folder = chosen;

  failure = failure_of([&] {
    checkpoint.emplace(
        detail::open_checkpoint(folder, session.world.rank(), options.verify));
    for (const auto& [id, hook] : checkpoints.load_hooks) {
      context.input_dir = folder;
      hook(context);
    }
    plan = detail::plan_load(session, *checkpoint, context.load_weights, rules);
    rank_state = own_rank_state(session, *checkpoint);
    if (plan.complaints.empty()) return;
    throw CheckpointError(concat(
        "[checkpoint] ",
        folder.string(),
        " does not fit what is prepared; nothing was loaded:\n  ",
        detail::join(plan.complaints, "\n  "),
        options.strict ? "\nLoadStateOptions: skip and allow_missing take "
                         "patterns of names, strict = false takes what fits"
                       : ""));
  });
  detail::require_success(session, failure, "load_state", "");
  failure = failure_of([&] {
    detail::carry_out(plan, session, *checkpoint, rank_state, rules);
  });
  detail::require_success(
      session,
      failure,
      "load_state",
      "[checkpoint] loading failed half-way; what is prepared is neither old "
      "nor new:\n");
  for (std::size_t i = 0; i < context.models.size(); ++i) {
    if (context.load_weights[i])
      detail::models_of(session)[i]->awaits_values = false;
  }
  for (const auto& model : session.models) {
    for (const auto& strategy : model->strategies) strategy->after_load();
  }
}

}  // namespace accelerate
