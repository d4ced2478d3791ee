#include "checkpoint/components/states.h"

#include <algorithm>
#include <mutex>
#include <set>

#include <ATen/Context.h>
#include <ATen/Functions.h>

#include "base/text/text.h"
#include "checkpoint/load/destinations.h"
#include "checkpoint/tensors/tensor_bytes.h"

namespace accelerate::detail {

namespace {

using Complaints = std::vector<std::string>;

Complaints count_complaints(
    const StateDict& state,
    const std::string& key,
    std::size_t present) {
  const std::size_t saved = state.get<std::vector<StateDict>>(key).size();
  if (saved == present) return {};
  return {format(
      "the checkpoint has {} {}, but this program has {}",
      saved,
      key,
      present)};
}

// Null if the checkpoint has no states of this rank.
const StateDict* saved_states(const CheckpointSource& source, StateUse use) {
  if (use != StateUse::per_rank) return &source.state;
  return source.rank_state ? &*source.rank_state : nullptr;
}

}  // namespace

void StateComponent::collect(CheckpointContents& contents) const {
  StateDict state = object_.state_dict();
  if (use_ == StateUse::optional && state.empty()) return;
  StateDict& all =
      use_ == StateUse::per_rank ? contents.rank_state : contents.state;
  all.set(key_, std::move(state));
}

Complaints StateComponent::check(
    const CheckpointSource& source,
    const MatchRules& rules) {
  const StateDict* const saved = saved_states(source, use_);
  if (!rules.strict || use_ == StateUse::optional || saved == nullptr ||
      saved->contains(key_)) {
    return {};
  }
  return {format(
      "the checkpoint has no state {}called \"{}\"",
      use_ == StateUse::per_rank ? "per rank " : "",
      key_)};
}

void StateComponent::load(const CheckpointSource& source, const MatchRules&) {
  const StateDict* const saved = saved_states(source, use_);
  if (saved != nullptr && saved->contains(key_))
    object_.load_state_dict(saved->get<StateDict>(key_));
}

void StateListComponent::collect(CheckpointContents& contents) const {
  std::vector<StateDict> states;
  for (const AnyStateful& object : objects_) {
    states.push_back(object.state_dict());
  }
  contents.state.set(key_, std::move(states));
}

Complaints StateListComponent::check(
    const CheckpointSource& source,
    const MatchRules& rules) {
  if (!rules.strict) return {};
  return count_complaints(source.state, key_, objects_.size());
}

void StateListComponent::load(
    const CheckpointSource& source,
    const MatchRules&) {
  const auto states = source.state.get<std::vector<StateDict>>(key_);
  for (std::size_t i = 0; i < std::min(states.size(), objects_.size()); ++i) {
    objects_[i].load_state_dict(states[i]);
  }
}

void ScalerComponent::collect(CheckpointContents& contents) const {
  if (scaler_) contents.state.set("scaler", scaler_->state_dict());
}

Complaints ScalerComponent::check(
    const CheckpointSource& source,
    const MatchRules& rules) {
  const bool is_saved = source.state.contains("scaler");
  if (!rules.strict || is_saved == scaler_.has_value()) return {};
  return {format(
      "the checkpoint was saved {} a loss scaler; "
      "mixed_precision must be the same",
      is_saved ? "with" : "without")};
}

void ScalerComponent::load(const CheckpointSource& source, const MatchRules&) {
  if (scaler_ && source.state.contains("scaler")) {
    scaler_->load_state_dict(source.state.get<StateDict>("scaler"));
  }
}

void LoaderComponent::collect(CheckpointContents& contents) const {
  std::vector<StateDict> states;
  for (const auto& slot : slots_) {
    states.push_back(slot->state_dict ? slot->state_dict() : StateDict());
  }
  contents.state.set("loaders", states);
  contents.rank_state.set("loaders", std::move(states));
}

namespace {

using LoaderSlots = std::vector<std::shared_ptr<LoaderSlot>>;

// The states from which loaders resume; fewer if fewer were saved.
std::vector<StateDict> chosen_states(
    const CheckpointSource& source,
    const LoaderSlots& slots) {
  const auto common = source.state.get<std::vector<StateDict>>("loaders");
  std::vector<StateDict> own;
  if (source.rank_state) {
    own = source.rank_state->get<std::vector<StateDict>>("loaders");
  }
  std::vector<StateDict> chosen;
  for (std::size_t i = 0; i < std::min(slots.size(), common.size()); ++i) {
    const bool is_own = i < own.size() && own[i].contains("num_shards") &&
        own[i].get<std::int64_t>("num_shards") > 0;
    chosen.push_back(is_own ? own[i] : common[i]);
  }
  return chosen;
}

std::string load_complaint(const LoaderSlot& slot, const StateDict& state) {
  if (state.empty() || !slot.load_complaint) return {};
  return slot.load_complaint(state);
}

}  // namespace

Complaints LoaderComponent::check(
    const CheckpointSource& source,
    const MatchRules& rules) {
  // Positions of Python's loaders cannot be read.
  if (!rules.strict || source.is_python) return {};
  Complaints complaints =
      count_complaints(source.state, "loaders", slots_.size());
  const auto states = chosen_states(source, slots_);
  for (std::size_t i = 0; i < states.size(); ++i) {
    const std::string complaint = load_complaint(*slots_[i], states[i]);
    if (!complaint.empty()) complaints.push_back(complaint);
  }
  return complaints;
}

void LoaderComponent::load(const CheckpointSource& source, const MatchRules&) {
  const auto states = chosen_states(source, slots_);
  for (std::size_t i = 0; i < states.size(); ++i) {
    const LoaderSlot& slot = *slots_[i];
    if (!slot.load_state_dict || states[i].empty()) continue;
    // Only without `strict`: the loader is left as it is.
    if (!load_complaint(slot, states[i]).empty()) continue;
    slot.load_state_dict(states[i]);
  }
}

void StrategyComponent::collect(CheckpointContents& contents) const {
  std::vector<StateDict> models;
  for (const StrategyStates& each : models_) {
    Section section{numbered("strategies", models.size()), {}};
    section.is_stage = each.model.others != nullptr;
    models.push_back(each.state_dict());
    for (SharedState& state : each.shared_states()) {
      const Layout full = Layout::unsharded(state.tensor.sizes().vec());
      const bool is_saved_there = each.model.others != nullptr &&
          each.model.others->saved_there.contains(state.parameter);
      section.entries.push_back(
          {std::move(state.name),
           state.tensor,
           full,
           writes_(full, *each.model.mesh, is_saved_there)});
    }
    if (!section.entries.empty())
      contents.sections.push_back(std::move(section));
  }
  contents.rank_state.set("strategies", std::move(models));
}

void StrategyComponent::load(
    const CheckpointSource& source,
    const MatchRules&) {
  for (std::size_t m = 0; m < models_.size(); ++m) {
    const auto found = source.sections.find(numbered("strategies", m));
    if (found != source.sections.end())
      load_shared(models_[m], found->second, m);
  }
  if (!source.rank_state) return;
  const auto saved =
      source.rank_state->get<std::vector<StateDict>>("strategies");
  for (std::size_t m = 0; m < std::min(saved.size(), models_.size()); ++m) {
    for (const std::string& name : models_[m].load_state_dict(saved[m]))
      warn_unclaimed(name, m);
  }
}

void StrategyComponent::load_shared(
    const StrategyStates& model,
    const StoredTensors& saved,
    std::size_t number) const {
  SavedSharedStates read;
  std::vector<Destination> destinations;
  std::set<std::string> claimed;
  for (const SharedState& state : model.shared_states()) {
    claimed.insert(state.name.substr(0, state.name.find('/')));
    const auto found = saved.find(state.name);
    if (found == saved.end()) continue;
    const auto dtype = torch_dtype(found->second.dtype);
    if (!dtype) continue;
    const std::vector<std::int64_t> shape =
        torch_shape(found->second.dtype, found->second.shape);
    const at::Tensor made = at::empty(shape, at::TensorOptions().dtype(*dtype));
    destinations.push_back({state.name, made, Layout::unsharded(shape)});
    read.emplace(state.name, made);
  }
  read_into(saved, destinations);
  model.load_shared_states(read);
  std::set<std::string> unclaimed;
  for (const auto& [name, tensor] : saved) {
    const std::string strategy = name.substr(0, name.find('/'));
    if (!claimed.contains(strategy)) unclaimed.insert(strategy);
  }
  // Other stages may have what this one lacks.
  if (model.model.others != nullptr) return;
  for (const std::string& name : unclaimed) warn_unclaimed(name, number);
}

void StrategyComponent::warn_unclaimed(
    const std::string& name,
    std::size_t number) const {
  logger_.log_once_per_world(
      LogLevel::warning,
      "checkpoint",
      format(
          "the state of \"{}\" that was saved with model {} is ignored: the "
          "model is prepared without it, or with other options",
          name,
          number));
}

at::Tensor generator_state(at::Device device) {
  at::Generator generator = at::globalContext().defaultGenerator(device);
  const std::lock_guard lock(generator.mutex());
  return generator.get_state().clone();
}

void set_generator_state(at::Device device, const at::Tensor& state) {
  at::Generator generator = at::globalContext().defaultGenerator(device);
  const std::lock_guard lock(generator.mutex());
  generator.set_state(state);
}

AnyStateful random_states(at::Device device) {
  std::vector<at::Device> devices{at::kCPU};
  if (!device.is_cpu()) devices.push_back(device);
  return {
      [devices] {
        StateDict state;
        for (const at::Device& each : devices) {
          state.set(each.str(), generator_state(each));
        }
        return state;
      },
      [devices](const StateDict& saved) {
        for (const at::Device& each : devices) {
          if (!saved.contains(each.str())) continue;
          set_generator_state(each, saved.get<at::Tensor>(each.str()));
        }
      }};
}

}  // namespace accelerate::detail
