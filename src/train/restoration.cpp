#include "train/restoration.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <accelerate/error.h>

#include "base/text.h"
#include "checkpoint/tensor_bytes.h"
#include "train/checkpoints.h"
#include "train/session.h"

namespace accelerate::detail {

namespace {

std::vector<PreparedOptimizer*> optimizers_of(const Session& session) {
  std::vector<PreparedOptimizer*> optimizers;
  for (const auto& optimizer : session.optimizers) {
    if (optimizer->inner != nullptr) optimizers.push_back(optimizer.get());
  }
  return optimizers;
}

std::vector<PreparedScheduler*> schedulers_of(const Session& session) {
  std::vector<PreparedScheduler*> schedulers;
  for (const auto& scheduler : session.schedulers) {
    if (scheduler->inner.address() != nullptr) {
      schedulers.push_back(scheduler.get());
    }
  }
  return schedulers;
}

void plan_models(
    LoadPlan& plan,
    const Session& session,
    const CheckpointSource& checkpoint,
    const std::vector<bool>& load_weights,
    const MatchRules& rules) {
  const auto models = models_of(session);
  for (std::size_t i = 0; i < models.size(); ++i) {
    if (!load_weights[i]) continue;
    const Part part = model_part(session, *models[i], i);
    const auto saved = checkpoint.parts.find(part.name);
    if (saved == checkpoint.parts.end()) {
      plan.complaints.push_back(concat(
          "the checkpoint has no ",
          part.name,
          "; it was saved with fewer models, or a hook saved it"));
      continue;
    }
    ModelLoad load;
    for (const PartEntry& entry : part.entries) {
      load.destinations.push_back({entry.name, entry.tensor, entry.layout});
    }
    load.saved = saved->second;
    take_other_names(load.saved, part.aliases);
    auto complaints = mismatches(
        part.name, load.saved, load.destinations, part.aliases, rules);
    plan.complaints.insert(
        plan.complaints.end(), complaints.begin(), complaints.end());
    plan.models.push_back(std::move(load));
  }
  const std::string next = numbered("model", models.size());
  if (checkpoint.parts.contains(next) && rules.strict) {
    plan.complaints.push_back(concat(
        "the checkpoint has ",
        next,
        " too, but only ",
        models.size(),
        models.size() == 1 ? " model is" : " models are",
        " prepared"));
  }
}

bool may_be_missing(const MatchRules& rules, const std::string& name) {
  return !rules.strict || matches_any(rules.skip, name) ||
      matches_any(rules.allow_missing, name);
}

void plan_optimizers(
    LoadPlan& plan,
    const Session& session,
    const CheckpointSource& checkpoint,
    const MatchRules& rules) {
  const auto optimizers = optimizers_of(session);
  const auto trees = checkpoint.state.get<std::vector<StateDict>>("optimizers");
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
    load.part = numbered("optimizer", i);
    load.optimizer = optimizers[i];
    load.name_of = parameter_names(session, *optimizers[i]);
    load.state = optimizer_state_from(trees[i]);
    if (checkpoint.is_python) {
      try {
        load.state =
            adapt_python_state(*optimizers[i]->inner, load.state, load.name_of);
      } catch (const CheckpointError& error) {
        plan.complaints.emplace_back(error.what());
        continue;
      }
    }
    load.masters = masters_of(session, *optimizers[i]);
    for (const std::string& complaint : optimizer_complaints(
             *optimizers[i]->inner,
             load.state,
             load.name_of,
             [&](const std::string& name) {
               return may_be_missing(rules, name);
             })) {
      plan.complaints.push_back(concat(load.part, ": ", complaint));
    }
    plan.optimizers.push_back(std::move(load));
  }
}

void require_counts(
    LoadPlan& plan,
    const Session& session,
    const CheckpointSource& checkpoint,
    bool strict) {
  const StateDict& state = checkpoint.state;
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
  // Python's places of loaders cannot be read.
  if (!checkpoint.is_python) {
    compare("loaders", live_loaders(session).size());
  }
  if (state.contains("scaler") != session.scaler.has_value()) {
    plan.complaints.push_back(concat(
        "the checkpoint was saved ",
        state.contains("scaler") ? "with" : "without",
        " a loss scaler; mixed_precision must be the same"));
  }
}

// Where this rank's boxes of an optimizer's tensors go: to the memory of those
// it has, if they fit, else to new memory.
class StateTensors {
 public:
  StateTensors(
      const Session& session,
      const OptimizerLoad& load,
      const StoredTensors& saved,
      const OptimizerState& present)
      : session_(session),
        part_(load.part),
        saved_(saved),
        layouts_(split_layouts(session)) {
    std::vector<std::pair<std::string, at::Tensor>> tensors;
    for (const auto& [name, values] : present.parameters) {
      static_cast<void>(emptied(values, name, tensors));
    }
    present_.insert(tensors.begin(), tensors.end());
  }

  // Called for what a parameter's state, or the rest, refers to.
  void add(const StateDict& tree, const std::string& parameter) {
    for (const std::string& name : tensor_names(tree)) {
      destinations_.push_back(destination(parameter, name));
      made_.emplace(name, destinations_.back().tensor);
    }
  }
  [[nodiscard]] std::vector<Destination>& destinations() {
    return destinations_;
  }
  [[nodiscard]] const at::Tensor& at(const std::string& name) const {
    return made_.at(name);
  }

 private:
  [[nodiscard]] Destination destination(
      const std::string& parameter,
      const std::string& name) const {
    const auto found = saved_.find(name);
    if (found == saved_.end()) {
      throw CheckpointError(
          concat("[checkpoint] ", part_, " has no tensor \"", name, "\""));
    }
    const StoredTensor& tensor = found->second;
    const auto dtype = torch_dtype(tensor.dtype);
    if (!dtype) {
      throw CheckpointError(concat(
          "[checkpoint] \"",
          name,
          "\" is of a dtype that LibTorch does not have"));
    }
    const std::vector<std::int64_t> shape =
        torch_shape(tensor.dtype, tensor.shape);
    const auto split = layouts_.find(parameter);
    const SplitLayout place =
        split != layouts_.end() && split->second.layout.global_shape == shape
        ? split->second
        : SplitLayout{Layout::whole(shape), nullptr, session_.world.device()};
    const Layout& layout = place.layout;
    const auto present = present_.find(name);
    if (present != present_.end() && present->second.defined() &&
        present->second.sizes() == at::IntArrayRef(layout.extent) &&
        present->second.scalar_type() == *dtype) {
      return {name, present->second, layout};
    }
    const at::Tensor made = at::empty(
        layout.extent, at::TensorOptions().dtype(*dtype).device(place.device));
    prefer_huge_pages(made);
    return {name, made, layout};
  }

  const Session& session_;
  const std::string& part_;
  const StoredTensors& saved_;
  std::map<std::string, SplitLayout> layouts_;
  std::map<std::string, at::Tensor> present_;
  std::vector<Destination> destinations_;
  std::map<std::string, at::Tensor> made_;
};

void load_optimizer(
    const Session& session,
    const CheckpointSource& checkpoint,
    OptimizerLoad& load,
    const MatchRules& rules) {
  static const StoredTensors kNone;
  const auto part = checkpoint.parts.find(load.part);
  const StoredTensors& saved =
      part == checkpoint.parts.end() ? kNone : part->second;
  const OptimizerState present =
      read_optimizer_state(*load.optimizer->inner, load.name_of);
  StateTensors tensors(session, load, saved, present);
  std::erase_if(load.state.parameters, [&](const auto& entry) {
    return matches_any(rules.skip, entry.first);
  });
  for (const auto& [name, values] : load.state.parameters) {
    tensors.add(values, name);
  }
  tensors.add(load.state.others, "");
  for (const auto& [name, tensor] : load.masters) {
    if (saved.contains(name)) {
      tensors.destinations().push_back(
          {name, tensor, Layout::whole(tensor.sizes().vec())});
    }
  }
  read_into(saved, tensors.destinations());
  const auto tensor_of = [&](const std::string& name) {
    return tensors.at(name);
  };
  for (auto& [name, values] : load.state.parameters) {
    values = refilled(values, tensor_of);
  }
  load.state.others = refilled(load.state.others, tensor_of);
  // What is skipped keeps the state it has.
  for (const auto& [name, values] : present.parameters) {
    const bool is_kept = matches_any(rules.skip, name) ||
        (may_be_missing(rules, name) && !load.state.parameters.contains(name));
    if (is_kept) load.state.parameters.insert_or_assign(name, values);
  }
  write_optimizer_state(*load.optimizer->inner, load.state, load.name_of);
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

void load_scheduler(PreparedScheduler& scheduler, const StateDict& state) {
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
    take_step(scheduler, {has_metric, has_metric ? metrics[i] : 0.0});
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
  const auto& slots = live_loaders(session);
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

}  // namespace

std::vector<PreparedModel*> models_of(const Session& session) {
  std::vector<PreparedModel*> models;
  for (const auto& model : session.models) {
    if (model->module) models.push_back(model.get());
  }
  return models;
}

LoadPlan plan_load(
    const Session& session,
    const CheckpointSource& checkpoint,
    const std::vector<bool>& load_weights,
    const MatchRules& rules) {
  LoadPlan plan;
  plan_models(plan, session, checkpoint, load_weights, rules);
  plan_optimizers(plan, session, checkpoint, rules);
  require_counts(plan, session, checkpoint, rules.strict);
  return plan;
}

void carry_out(
    LoadPlan& plan,
    Session& session,
    const CheckpointSource& checkpoint,
    const std::optional<StateDict>& rank_state,
    const MatchRules& rules) {
  const StateDict& state = checkpoint.state;
  for (const ModelLoad& load : plan.models) {
    read_into(load.saved, load.destinations, rules);
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

}  // namespace accelerate::detail
