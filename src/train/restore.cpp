#include <accelerate/accelerator.h>

#include <algorithm>
#include <utility>

#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <accelerate/error.h>

#include "base/text.h"
#include "checkpoint/load.h"
#include "checkpoint/save.h"
#include "checkpoint/tensor_bytes.h"
#include "format/checkpoint_folder.h"
#include "format/commit.h"
#include "train/checkpoints.h"
#include "train/session.h"

namespace accelerate {

namespace {

using detail::Checkpoint;
using detail::Checkpoints;
using detail::concat;
using detail::Destination;
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

std::vector<detail::PreparedModel*> models_of(const Session& session) {
  std::vector<detail::PreparedModel*> models;
  for (const auto& model : session.models) {
    if (model->module) models.push_back(model.get());
  }
  return models;
}

std::vector<detail::PreparedOptimizer*> optimizers_of(const Session& session) {
  std::vector<detail::PreparedOptimizer*> optimizers;
  for (const auto& optimizer : session.optimizers) {
    if (optimizer->inner != nullptr) optimizers.push_back(optimizer.get());
  }
  return optimizers;
}

std::vector<detail::PreparedScheduler*> schedulers_of(const Session& session) {
  std::vector<detail::PreparedScheduler*> schedulers;
  for (const auto& scheduler : session.schedulers) {
    if (scheduler->inner.address() != nullptr) {
      schedulers.push_back(scheduler.get());
    }
  }
  return schedulers;
}

// What will be put where, after it was compared.
struct ModelLoad {
  std::string part;
  std::vector<Destination> destinations;
};
struct OptimizerLoad {
  std::string part;
  detail::PreparedOptimizer* optimizer = nullptr;
  detail::NameOfParameter name_of;
  detail::OptimizerState state;
  std::vector<std::pair<std::string, at::Tensor>> masters;
};
struct Plan {
  std::vector<ModelLoad> models;
  std::vector<OptimizerLoad> optimizers;
  std::vector<std::string> complaints;
};

void plan_models(
    Plan& plan,
    const Session& session,
    const Checkpoint& checkpoint,
    const std::vector<bool>& load_weights,
    const MatchRules& rules) {
  const auto models = models_of(session);
  for (std::size_t i = 0; i < models.size(); ++i) {
    if (!load_weights[i]) continue;
    const detail::Part part = detail::model_part(session, *models[i], i);
    if (!checkpoint.manifest().parts.contains(part.name)) {
      plan.complaints.push_back(concat(
          "the checkpoint has no ",
          part.name,
          "; it was saved with fewer models, or a hook saved it"));
      continue;
    }
    ModelLoad load{part.name, {}};
    for (const detail::PartEntry& entry : part.entries) {
      load.destinations.push_back({entry.name, entry.tensor, entry.layout});
    }
    auto complaints = detail::mismatches(
        part.name,
        checkpoint.tensors(part.name),
        load.destinations,
        part.aliases,
        rules);
    plan.complaints.insert(
        plan.complaints.end(), complaints.begin(), complaints.end());
    plan.models.push_back(std::move(load));
  }
  const std::string next = detail::numbered("model", models.size());
  if (checkpoint.manifest().parts.contains(next) && rules.strict) {
    plan.complaints.push_back(concat(
        "the checkpoint has ",
        next,
        " too, but only ",
        models.size(),
        models.size() == 1 ? " model is" : " models are",
        " prepared"));
  }
}

void plan_optimizers(
    Plan& plan,
    const Session& session,
    const StateDict& state,
    const MatchRules& rules) {
  const auto optimizers = optimizers_of(session);
  const auto trees = state.get<std::vector<StateDict>>("optimizers");
  if (trees.size() != optimizers.size()) {
    if (rules.strict) {
      plan.complaints.push_back(concat(
          "the checkpoint has ",
          trees.size(),
          " optimizers, prepared are ",
          optimizers.size()));
    }
  }
  for (std::size_t i = 0; i < std::min(trees.size(), optimizers.size()); ++i) {
    OptimizerLoad load;
    load.part = detail::numbered("optimizer", i);
    load.optimizer = optimizers[i];
    load.name_of = detail::parameter_names(session, *optimizers[i]);
    load.state = detail::optimizer_state_from(trees[i]);
    load.masters = detail::masters_of(session, *optimizers[i]);
    for (const std::string& complaint : detail::optimizer_complaints(
             *optimizers[i]->inner, load.state, load.name_of, rules.strict)) {
      plan.complaints.push_back(concat(load.part, ": ", complaint));
    }
    plan.optimizers.push_back(std::move(load));
  }
}

void require_counts(
    Plan& plan,
    const Session& session,
    const StateDict& state,
    bool strict) {
  if (!strict) return;
  const auto compare = [&](const char* what, std::size_t present) {
    const std::size_t saved = state.get<std::vector<StateDict>>(what).size();
    if (saved != present) {
      plan.complaints.push_back(concat(
          "the checkpoint has ", saved, " ", what, ", here are ", present));
    }
  };
  compare("schedulers", schedulers_of(session).size());
  compare("objects", session.checkpoints->objects.size());
  compare("loaders", session.checkpoints->loaders.size());
  if (state.contains("scaler") != session.scaler.has_value()) {
    plan.complaints.push_back(concat(
        "the checkpoint was saved ",
        state.contains("scaler") ? "with" : "without",
        " a loss scaler; mixed_precision must be the same"));
  }
}

// This rank's box of a saved tensor of the optimizer, in new memory.
Destination new_tensor(
    const Session& session,
    const OptimizerLoad& load,
    const detail::StoredTensors& saved,
    const std::string& parameter,
    const std::string& name) {
  const auto found = saved.find(name);
  if (found == saved.end()) {
    throw CheckpointError(
        concat("[checkpoint] ", load.part, " has no tensor \"", name, "\""));
  }
  const detail::StoredTensor& tensor = found->second;
  const auto dtype = detail::torch_dtype(tensor.dtype);
  if (!dtype) {
    throw CheckpointError(concat(
        "[checkpoint] \"",
        name,
        "\" is of a dtype that LibTorch does not have"));
  }
  const std::vector<std::int64_t> shape =
      detail::torch_shape(tensor.dtype, tensor.shape);
  detail::Layout layout = detail::layout_of_parameter(session, parameter);
  if (layout.is_whole() || layout.global_shape != shape) {
    layout = detail::Layout::whole(shape);
  }
  const at::Tensor made = at::empty(
      layout.extent,
      at::TensorOptions().dtype(*dtype).device(session.world.device()));
  return {name, made, layout};
}

void load_optimizer(
    const Session& session,
    const Checkpoint& checkpoint,
    OptimizerLoad& load,
    const MatchRules& rules) {
  const detail::StoredTensors saved = checkpoint.tensors(load.part);
  std::vector<Destination> destinations;
  std::map<std::string, at::Tensor> made;
  const auto plan_tensors = [&](const StateDict& tree,
                                const std::string& parameter) {
    for (const std::string& name : detail::tensor_names(tree)) {
      destinations.push_back(new_tensor(session, load, saved, parameter, name));
      made.emplace(name, destinations.back().tensor);
    }
  };
  // What is skipped keeps the state it has.
  const detail::OptimizerState present = rules.skip.empty() && rules.strict
      ? detail::OptimizerState()
      : detail::read_optimizer_state(*load.optimizer->inner, load.name_of);
  std::erase_if(load.state.parameters, [&](const auto& entry) {
    return detail::matches_any(rules.skip, entry.first);
  });
  for (const auto& [name, values] : load.state.parameters) {
    plan_tensors(values, name);
  }
  plan_tensors(load.state.others, "");
  for (const auto& [name, tensor] : load.masters) {
    if (saved.contains(name)) {
      destinations.push_back(
          {name, tensor, detail::Layout::whole(tensor.sizes().vec())});
    }
  }
  detail::read_into(saved, destinations);
  const auto tensor_of = [&](const std::string& name) { return made.at(name); };
  for (auto& [name, values] : load.state.parameters) {
    values = detail::refilled(values, tensor_of);
  }
  load.state.others = detail::refilled(load.state.others, tensor_of);
  for (const auto& [name, values] : present.parameters) {
    const bool is_kept = detail::matches_any(rules.skip, name) ||
        !load.state.parameters.contains(name);
    if (is_kept) load.state.parameters.insert_or_assign(name, values);
  }
  detail::write_optimizer_state(
      *load.optimizer->inner, load.state, load.name_of);
  // Saved without masters: the model's weights are all there is.
  const at::NoGradGuard no_grad;
  for (const auto& [name, tensor] : load.masters) {
    if (saved.contains(name)) continue;
    const std::string parameter = name.substr(0, name.rfind('/'));
    for (const auto& group : load.optimizer->inner->param_groups()) {
      for (const at::Tensor& local : group.params()) {
        const at::Tensor* const in_model = session.tensor_of(local);
        if (in_model != nullptr && load.name_of(local) == parameter) {
          tensor.copy_(*in_model);
        }
      }
    }
  }
}

void load_scheduler(
    detail::PreparedScheduler& scheduler,
    const StateDict& state) {
  if (scheduler.inner.own != nullptr) {
    scheduler.inner.own->load_state_dict(state);
    return;
  }
  // LibTorch's cannot be set; they are led to the same place.
  const auto num_steps = state.get<std::int64_t>("num_steps");
  const auto metrics = state.get<std::vector<double>>("metrics");
  if (num_steps < scheduler.num_steps) {
    throw CheckpointError(concat(
        "[checkpoint] a LibTorch schedule has made ",
        scheduler.num_steps,
        " steps and cannot go back to ",
        num_steps,
        "; load before training, or use a schedule of accelerate::optim"));
  }
  while (scheduler.num_steps < num_steps) {
    const auto i = static_cast<std::size_t>(scheduler.num_steps);
    const bool has_metric = scheduler.inner.plateau != nullptr;
    if (has_metric && i >= metrics.size()) {
      throw CheckpointError(
          "[checkpoint] the state of a schedule has too few metrics");
    }
    detail::take_step(scheduler, {has_metric, has_metric ? metrics[i] : 0.0});
  }
}

void load_loaders(
    const Session& session,
    const StateDict& state,
    const StateDict* rank_state) {
  const auto common = state.get<std::vector<StateDict>>("loaders");
  std::vector<StateDict> own;
  if (rank_state != nullptr) {
    own = rank_state->get<std::vector<StateDict>>("loaders");
  }
  const auto& slots = session.checkpoints->loaders;
  for (std::size_t i = 0; i < std::min(slots.size(), common.size()); ++i) {
    // Data that each rank reads for itself is at a place of each rank's own.
    const bool is_own = i < own.size() && own[i].contains("num_shards") &&
        own[i].get<std::int64_t>("num_shards") > 0;
    const StateDict& chosen = is_own ? own[i] : common[i];
    if (slots[i]->load_state_dict && !chosen.empty()) {
      slots[i]->load_state_dict(chosen);
    }
  }
}

void load_random_state(const at::Device& device, const StateDict& saved) {
  const auto restore = [&](at::Device of) {
    if (!saved.contains(of.str())) return;
    at::Generator generator = at::globalContext().defaultGenerator(of);
    const std::lock_guard lock(generator.mutex());
    generator.set_state(saved.get<at::Tensor>(of.str()));
  };
  restore(at::kCPU);
  if (!device.is_cpu()) restore(device);
}

// Of this rank, if as many processes saved; else nothing.
std::optional<StateDict> own_rank_state(
    const Session& session,
    const Checkpoint& checkpoint) {
  const std::string file = detail::rank_file(session.world.rank());
  if (checkpoint.manifest().num_processes != session.world.size() ||
      !checkpoint.manifest().files.contains(file)) {
    session.world.logger().log_once_per_world(
        LogLevel::warning,
        "checkpoint",
        concat(
            checkpoint.folder().string(),
            " was saved by ",
            checkpoint.manifest().num_processes,
            " processes and is loaded by ",
            session.world.size(),
            "; random states are left as they are"));
    return std::nullopt;
  }
  return checkpoint.state(file);
}

void load_strategies(const Session& session, const StateDict& rank_state) {
  const auto saved = rank_state.get<std::vector<StateDict>>("strategies");
  const auto models = models_of(session);
  for (std::size_t m = 0; m < std::min(saved.size(), models.size()); ++m) {
    for (std::size_t i = 0; i < models[m]->strategies.size(); ++i) {
      const std::string key = std::to_string(i);
      if (saved[m].contains(key)) {
        models[m]->strategies[i]->load_state_dict(saved[m].get<StateDict>(key));
      }
    }
  }
}

void load_everything(
    Session& session,
    const Checkpoint& checkpoint,
    const StateDict& state,
    const std::optional<StateDict>& rank_state,
    Plan& plan,
    const MatchRules& rules) {
  for (const ModelLoad& load : plan.models) {
    detail::read_into(checkpoint.tensors(load.part), load.destinations, rules);
  }
  // Before the optimizers, whose learning rates they would change.
  const auto schedulers = schedulers_of(session);
  const auto saved_schedulers = state.get<std::vector<StateDict>>("schedulers");
  for (std::size_t i = 0;
       i < std::min(schedulers.size(), saved_schedulers.size());
       ++i) {
    load_scheduler(*schedulers[i], saved_schedulers[i]);
  }
  for (OptimizerLoad& load : plan.optimizers) {
    load_optimizer(session, checkpoint, load, rules);
  }
  if (session.scaler && state.contains("scaler")) {
    session.scaler->load_state_dict(state.get<StateDict>("scaler"));
  }
  const auto objects = state.get<std::vector<StateDict>>("objects");
  const auto& registered = session.checkpoints->objects;
  for (std::size_t i = 0; i < std::min(objects.size(), registered.size());
       ++i) {
    registered[i].load_state_dict(objects[i]);
  }
  load_loaders(session, state, rank_state ? &*rank_state : nullptr);
  session.clock.load_state_dict(state.get<StateDict>("step"));
  if (!rank_state) return;
  load_strategies(session, *rank_state);
  load_random_state(
      session.world.device(), rank_state->get<StateDict>("random"));
}

// All ranks go on, or all throw what any of them had to say.
void require_success(
    Session& session,
    const std::string& failure,
    std::string_view what) {
  std::vector<std::string> lines;
  const auto said = session.checkpoints->calls->exchange(failure, "load_state");
  for (std::size_t i = 0; i < said.size(); ++i) {
    if (said[i].empty()) continue;
    // Alike on all ranks, mostly.
    if (i > 0 && said[i] == said[0]) continue;
    lines.push_back(
        said.size() == 1 ? said[i] : concat("rank ", i, ": ", said[i]));
  }
  if (lines.empty()) return;
  throw CheckpointError(concat(what, detail::join(lines, "\n")));
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
  require_success(session, failure, "");
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
  std::optional<Checkpoint> checkpoint;
  StateDict state;
  std::optional<StateDict> rank_state;
  Plan plan;
  LoadHookContext context;
  for (const auto& model : models_of(session)) {
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
  require_success(session, failure, "");
  const std::string chosen =
      checkpoints.calls->tell(folder.string(), "load_state");
  if (!checkpoints.project.save_on_each_node) folder = chosen;

  failure = failure_of([&] {
    checkpoint.emplace(folder);
    if (options.verify) checkpoint->verify();
    for (const auto& [id, hook] : checkpoints.load_hooks) {
      context.input_dir = folder;
      hook(context);
    }
    state =
        checkpoint->state(detail::part_file(detail::kStatePart, false, 0, 1));
    plan_models(plan, session, *checkpoint, context.load_weights, rules);
    plan_optimizers(plan, session, state, rules);
    require_counts(plan, session, state, options.strict);
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
  require_success(session, failure, "");
  failure = failure_of([&] {
    load_everything(session, *checkpoint, state, rank_state, plan, rules);
  });
  require_success(
      session,
      failure,
      "[checkpoint] loading failed half-way; what is prepared is neither old "
      "nor new:\n");
}

}  // namespace accelerate
