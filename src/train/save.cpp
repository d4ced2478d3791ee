#include <accelerate/accelerator.h>

#include <algorithm>
#include <utility>

#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <accelerate/error.h>

#include "base/text.h"
#include "checkpoint/save.h"
#include "format/checkpoint_folder.h"
#include "train/checkpoints.h"
#include "train/session.h"

namespace accelerate {

namespace {

using detail::Checkpoints;
using detail::concat;
using detail::Contents;
using detail::Part;
using detail::Session;

// Where a save goes, and what it does to others.
struct Target {
  std::filesystem::path path;
  std::int64_t iteration = 0;
  std::vector<std::filesystem::path> deleted = {};
  /// Another save is still being written.
  bool is_skipped = false;
};

// The automatic checkpoints that go when one is saved as `path`. Throws
// ConfigError if it must not be.
std::vector<std::filesystem::path> deleted_by(
    const Session& session,
    const std::filesystem::path& path,
    const std::vector<detail::CheckpointEntry>& entries) {
  const std::filesystem::path base = path.parent_path();
  const auto plan = detail::plan_retention(
      entries,
      path.filename().string(),
      session.checkpoints->project.total_limit);
  if (!plan) {
    throw ConfigError(concat(
        "[checkpoint] ",
        path.string(),
        " is there already; set ProjectConfiguration::iteration higher than "
        "those there are, or leave it unset"));
  }
  std::vector<std::filesystem::path> deleted;
  for (const std::string& old : plan->deleted) deleted.push_back(base / old);
  return deleted;
}

Target choose_target(
    const Session& session,
    const std::filesystem::path& output_dir) {
  const ProjectConfiguration& project = session.checkpoints->project;
  if (!output_dir.empty()) {
    return {output_dir, project.iteration.value_or(0)};
  }
  if (!project.automatic_checkpoint_naming) {
    throw ConfigError(
        "[checkpoint] save_state() needs a folder, or "
        "ProjectConfiguration::automatic_checkpoint_naming and a project_dir");
  }
  if (project.project_dir.empty()) {
    throw ConfigError(
        "[checkpoint] automatic_checkpoint_naming needs a project_dir");
  }
  if (project.total_limit && *project.total_limit < 1) {
    throw ConfigError(concat(
        "[checkpoint] total_limit is ",
        *project.total_limit,
        "; it is at least 1"));
  }
  const std::filesystem::path base =
      std::filesystem::path(project.project_dir) / detail::kCheckpointsFolder;
  const auto entries = detail::list_checkpoints(base);
  const std::int64_t highest =
      entries.empty() ? -1 : entries.back().number.value_or(-1);
  Target target;
  target.iteration = project.iteration.value_or(highest + 1);
  target.path = base / concat(detail::kCheckpointPrefix, target.iteration);
  target.deleted = deleted_by(session, target.path, entries);
  return target;
}

// Rank 0 decides, should others see the folder differently.
Target agree_on_target(
    const Session& session,
    const std::filesystem::path& output_dir,
    const SaveStateOptions& options) {
  Checkpoints& checkpoints = *session.checkpoints;
  Target target;
  std::string decision;
  if (checkpoints.calls->is_leader()) {
    try {
      target = choose_target(session, output_dir);
      target.is_skipped =
          options.when_busy == WhenBusy::skip && checkpoints.saver.is_busy();
      decision = concat(
          target.is_skipped ? "skip " : "save ",
          target.iteration,
          " ",
          target.path.string());
    } catch (const Error& error) {
      decision = concat("refuse ", error.what());
    }
  }
  decision = checkpoints.calls->tell(decision, "save_state");
  const std::string verdict = decision.substr(0, decision.find(' '));
  decision.erase(0, verdict.size() + 1);
  if (verdict == "refuse") throw ConfigError(decision);
  target.is_skipped = verdict == "skip";
  target.iteration =
      detail::parse_int(decision.substr(0, decision.find(' '))).value_or(0);
  target.path = decision.substr(decision.find(' ') + 1);
  return target;
}

StateDict random_state(const at::Device& device) {
  StateDict state;
  const auto add = [&](at::Device of) {
    at::Generator generator = at::globalContext().defaultGenerator(of);
    const std::lock_guard lock(generator.mutex());
    state.set(of.str(), generator.get_state().clone());
  };
  add(at::kCPU);
  if (!device.is_cpu()) add(device);
  return state;
}

std::vector<StateDict> loader_states(const Session& session) {
  std::vector<StateDict> states;
  for (const auto& slot : detail::live_loaders(session)) {
    states.push_back(slot->state_dict ? slot->state_dict() : StateDict());
  }
  return states;
}

StateDict scheduler_state(const detail::PreparedScheduler& scheduler) {
  if (scheduler.inner.own != nullptr) return scheduler.inner.own->state_dict();
  return {{"num_steps", scheduler.num_steps}, {"metrics", scheduler.metrics}};
}

Contents contents_of(
    const Session& session,
    const std::vector<bool>& save_weights) {
  Contents contents;
  std::vector<StateDict> strategies;
  std::size_t number = 0;
  for (const auto& model : session.models) {
    if (!model->module) continue;
    if (save_weights[number]) {
      contents.parts.push_back(detail::model_part(session, *model, number));
    }
    StateDict of_model;
    for (std::size_t i = 0; i < model->strategies.size(); ++i) {
      StateDict state = model->strategies[i]->state_dict();
      if (!state.empty()) of_model.set(std::to_string(i), std::move(state));
    }
    strategies.push_back(std::move(of_model));
    ++number;
  }

  const auto layouts = detail::split_layouts(session);
  std::vector<StateDict> optimizers;
  for (const auto& optimizer : session.optimizers) {
    if (optimizer->inner == nullptr) continue;
    Part part{detail::numbered("optimizer", optimizers.size()), {}};
    const auto state = detail::read_optimizer_state(
        *optimizer->inner, detail::parameter_names(session, *optimizer));
    std::vector<std::pair<std::string, at::Tensor>> tensors;
    detail::OptimizerState bare = state;
    for (auto& [name, values] : bare.parameters) {
      tensors.clear();
      values = detail::emptied(values, name, tensors);
      const auto layout = layouts.find(name);
      for (auto& [key, tensor] : tensors) {
        const bool is_box = layout != layouts.end() &&
            tensor.sizes() == at::IntArrayRef(layout->second.layout.extent);
        const detail::Layout own = is_box
            ? layout->second.layout
            : detail::Layout::whole(tensor.sizes().vec());
        const Mesh& mesh = is_box ? *layout->second.mesh : session.mesh;
        part.entries.push_back(
            {key, tensor, own, detail::writes(session, mesh, own)});
      }
    }
    tensors = detail::masters_of(session, *optimizer);
    StateDict tree;
    bare.others = {};
    if (!state.others.empty()) {
      bare.others = detail::emptied(state.others, "archive", tensors);
    }
    for (auto& [key, tensor] : tensors) {
      const auto whole = detail::Layout::whole(tensor.sizes().vec());
      part.entries.push_back(
          {key, tensor, whole, detail::writes(session, session.mesh, whole)});
    }
    optimizers.push_back(detail::to_state_dict(bare));
    contents.parts.push_back(std::move(part));
  }

  std::vector<StateDict> schedulers, objects;
  for (const auto& scheduler : session.schedulers) {
    if (scheduler->inner.address() == nullptr) continue;
    schedulers.push_back(scheduler_state(*scheduler));
  }
  for (const auto& object : session.checkpoints->objects) {
    objects.push_back(object.state_dict());
  }
  const std::vector<StateDict> loaders = loader_states(session);
  contents.state.set("step", session.clock.state_dict());
  contents.state.set("optimizers", std::move(optimizers));
  contents.state.set("schedulers", std::move(schedulers));
  contents.state.set("objects", std::move(objects));
  contents.state.set("loaders", loaders);
  if (session.scaler) {
    contents.state.set("scaler", session.scaler->state_dict());
  }
  contents.rank_state.set("random", random_state(session.world.device()));
  contents.rank_state.set("loaders", loaders);
  contents.rank_state.set("strategies", std::move(strategies));
  return contents;
}

std::shared_ptr<detail::SaveProgress> skipped(std::filesystem::path path) {
  auto progress = std::make_shared<detail::SaveProgress>();
  progress->path = std::move(path);
  progress->is_done = true;
  progress->was_skipped = true;
  return progress;
}

void warn_inside_window(const Session& session) {
  if (session.clock.sync_gradients()) return;
  session.world.logger().log_once_per_world(
      LogLevel::warning,
      "checkpoint",
      "save_state() was called inside a window of micro-steps; the gradients "
      "they have added up so far are not saved. Save when sync_gradients()");
}

}  // namespace

SaveTicket Accelerator::save_state(const SaveStateOptions& options) const {
  return save_state(std::filesystem::path(), options);
}

SaveTicket Accelerator::save_state(
    const std::filesystem::path& output_dir,
    const SaveStateOptions& options) const {
  Session& session = *session_;
  require_no_join(session, "save_state()");
  Checkpoints& checkpoints = *session.checkpoints;
  detail::require_same_call(session, "save_state", output_dir.string());
  Target target = agree_on_target(session, output_dir, options);
  if (target.is_skipped) return SaveTicket(skipped(target.path));
  checkpoints.saver.wait();
  warn_inside_window(session);

  SaveHookContext context;
  for (const auto& model : session.models) {
    if (model->module) context.models.push_back(model->module);
  }
  context.save_weights.assign(context.models.size(), true);
  std::string failure;
  const bool is_other_leader = !checkpoints.calls->is_leader() &&
      checkpoints.writers.front() == session.world.rank();
  if (is_other_leader && output_dir.empty()) {
    try {
      target.deleted = deleted_by(
          session,
          target.path,
          detail::list_checkpoints(target.path.parent_path()));
    } catch (const Error& error) {
      failure = error.what();
    }
  }
  auto writer = std::make_unique<detail::CheckpointWriter>(
      detail::SaveJob{
          {},
          target.path,
          target.iteration,
          session.world.rank(),
          session.world.size(),
          target.deleted,
          checkpoints.disk,
          session.world.logger(),
          options.safe_serialization},
      *checkpoints.saves);
  context.output_dir = writer->folder();
  try {
    if (failure.empty()) {
      for (const auto& [id, hook] : checkpoints.save_hooks) hook(context);
      writer->contents() = contents_of(session, context.save_weights);
    }
  } catch (const std::exception& error) {
    failure = error.what();
  }
  detail::require_success(
      session,
      failure,
      "save_state",
      concat("[checkpoint] ", target.path.string(), " was not saved:\n"));
  const std::uint64_t wanted =
      detail::SnapshotMemory::bytes_for(writer->contents());
  const bool fits = options.memory_limit == 0 || wanted <= options.memory_limit;
  if (options.asynchronous && !fits) {
    session.world.logger().log(
        LogLevel::info,
        "checkpoint",
        concat(
            "an asynchronous save would hold ",
            wanted,
            " bytes, more than memory_limit; it is written at once"));
  }
  auto progress = options.asynchronous && fits
      ? checkpoints.saver.start(std::move(writer))
      : checkpoints.saver.run(std::move(writer));
  if (output_dir.empty() || checkpoints.project.iteration) {
    checkpoints.project.iteration = target.iteration + 1;
  }
  return SaveTicket(std::move(progress));
}

void Accelerator::register_object(
    std::function<StateDict()> state_dict,
    std::function<void(const StateDict&)> load_state_dict) const {
  session_->checkpoints->objects.push_back(
      {std::move(state_dict), std::move(load_state_dict)});
}

namespace {

template <class Hooks, class Hook>
HookHandle add_hook(
    const std::shared_ptr<Session>& session,
    Hooks Checkpoints::*list,
    Hook hook) {
  Checkpoints& checkpoints = *session->checkpoints;
  const std::int64_t id = checkpoints.next_hook++;
  (checkpoints.*list).emplace_back(id, std::move(hook));
  return HookHandle([weak = std::weak_ptr<Session>(session), list, id] {
    const auto alive = weak.lock();
    if (!alive) return;
    std::erase_if((*alive->checkpoints).*list, [id](const auto& entry) {
      return entry.first == id;
    });
  });
}

}  // namespace

HookHandle Accelerator::register_save_state_pre_hook(
    std::function<void(SaveHookContext&)> hook) const {
  return add_hook(session_, &Checkpoints::save_hooks, std::move(hook));
}

HookHandle Accelerator::register_load_state_pre_hook(
    std::function<void(LoadHookContext&)> hook) const {
  return add_hook(session_, &Checkpoints::load_hooks, std::move(hook));
}

const ProjectConfiguration& Accelerator::project_configuration() const {
  return session_->checkpoints->project;
}

void Accelerator::set_iteration(std::optional<std::int64_t> iteration) const {
  session_->checkpoints->project.iteration = iteration;
}

}  // namespace accelerate
