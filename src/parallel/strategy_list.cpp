#include "parallel/strategy_list.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include <torch/optim/optimizer.h>

#include <accelerate/error.h>

#include "base/reversed.h"
#include "base/text/text.h"

namespace accelerate::detail {

namespace {

bool steps_on(
    const torch::optim::Optimizer& optimizer,
    const ParameterTable& table) {
  const auto& groups = optimizer.param_groups();
  return std::ranges::any_of(groups, [&](const auto& group) {
    const auto& parameters = group.params();
    return std::ranges::any_of(parameters, [&](const at::Tensor& parameter) {
      return table.find(parameter) != nullptr ||
          table.find_local(parameter) != nullptr;
    });
  });
}

// Older checkpoints name strategies by position; only `replicate` had state
// then, and was first or second in the list.
std::string_view name_of_key(std::string_view key) {
  return key == "0" || key == "1" ? "replicate" : key;
}

void append_line(
    std::optional<std::string>& lines,
    const std::optional<std::string>& line) {
  if (!line) return;
  lines = lines ? format("{}\n{}", *lines, *line) : *line;
}

}  // namespace

void StrategyList::add(
    std::string_view name,
    std::unique_ptr<Strategy> strategy) {
  if (find(name) != nullptr) {
    throw InternalError(format(
        "[parallel] strategies must have different names, "
        "but two are called \"{}\"",
        name));
  }
  entries_.push_back({std::string(name), std::move(strategy)});
  merge_traits();
}

void StrategyList::clear() { *this = {}; }

std::vector<std::string_view> StrategyList::names() const {
  std::vector<std::string_view> names;
  for (const Entry& entry : entries_) names.push_back(entry.name);
  return names;
}

void StrategyList::prepare(torch::nn::Module& module, ParameterTable& table) {
  for (const Entry& entry : entries_) entry.strategy->prepare(module, table);
  merge_traits();
}

void StrategyList::bind(
    torch::optim::Optimizer& optimizer,
    const ParameterTable& table) {
  if (bound_.contains(&optimizer)) {
    for (const Entry& entry : entries_)
      entry.strategy->bind_added(optimizer, table);
    return;
  }
  for (const Entry& entry : entries_) entry.strategy->bind(optimizer, table);
  if (steps_on(optimizer, table)) bound_.insert(&optimizer);
}

void StrategyList::before_forward() {
  for (const Entry& entry : entries_) entry.strategy->before_forward();
}

void StrategyList::after_forward(const ForwardOutputs& outputs) {
  for (const Entry& entry : entries_) entry.strategy->after_forward(outputs);
}

void StrategyList::before_backward(
    bool sync_gradients,
    const at::Tensor& loss) {
  for (const Entry& entry : entries_)
    entry.strategy->before_backward(sync_gradients, loss);
}

void StrategyList::after_backward(bool sync_gradients) {
  for (const Entry& entry : Reversed(entries_))
    entry.strategy->after_backward(sync_gradients);
}

void StrategyList::after_prepare(const ModelCalls& calls) {
  for (const Entry& entry : entries_) entry.strategy->after_prepare(calls);
}

void StrategyList::before_plain_backward(bool sync_gradients) {
  for (const Entry& entry : entries_)
    entry.strategy->before_plain_backward(sync_gradients);
}

void StrategyList::after_plain_backward(bool sync_gradients) {
  for (const Entry& entry : Reversed(entries_))
    entry.strategy->after_plain_backward(sync_gradients);
}

void StrategyList::before_last_gradients(
    const std::vector<at::Tensor>& parameters) {
  for (const Entry& entry : entries_)
    entry.strategy->before_last_gradients(parameters);
}

void StrategyList::average_gradient(const at::Tensor& gradient) {
  for (const Entry& entry : entries_)
    entry.strategy->average_gradient(gradient);
}

void StrategyList::drop_gradient(const at::Tensor& parameter) const {
  for (const Entry& entry : entries_) entry.strategy->drop_gradient(parameter);
}

void StrategyList::before_step() {
  for (const Entry& entry : entries_) entry.strategy->before_step();
}

void StrategyList::unpack_optimizer_state(torch::optim::Optimizer& optimizer) {
  if (!bound_.contains(&optimizer)) return;
  for (const Entry& entry : entries_)
    entry.strategy->unpack_optimizer_state(optimizer);
}

void StrategyList::pack_optimizer_state(torch::optim::Optimizer& optimizer) {
  if (!bound_.contains(&optimizer)) return;
  for (const Entry& entry : entries_)
    entry.strategy->pack_optimizer_state(optimizer);
}

void StrategyList::after_step(const torch::optim::Optimizer& optimizer) {
  if (!bound_.contains(&optimizer)) return;
  for (const Entry& entry : entries_) entry.strategy->after_step();
}

std::vector<StrategyList::OwnedParts> StrategyList::step_parts(
    const torch::optim::Optimizer& optimizer) {
  std::vector<OwnedParts> owned;
  if (!bound_.contains(&optimizer)) return owned;
  for (const Entry& entry : entries_) {
    owned.push_back(
        {entry.strategy.get(), entry.strategy->step_parts(optimizer)});
  }
  return owned;
}

std::vector<StepFigure> StrategyList::take_figures() {
  std::vector<StepFigure> all;
  for (const Entry& entry : entries_) {
    std::vector<StepFigure> figures = entry.strategy->take_figures();
    std::ranges::move(figures, std::back_inserter(all));
  }
  return all;
}

void StrategyList::step_locally(bool is_local) {
  for (const Entry& entry : entries_) entry.strategy->step_locally(is_local);
}

void StrategyList::average_parameters(const ParameterTable& table) {
  for (const Entry& entry : entries_) entry.strategy->average_parameters(table);
}

void StrategyList::after_load() {
  for (const Entry& entry : entries_) entry.strategy->after_load();
}

std::vector<std::shared_ptr<void>> StrategyList::unshard_parameters() {
  std::vector<std::shared_ptr<void>> open;
  // Parameters that were divided last are gathered first. The scopes end in
  // list order, since a vector destroys its first element first.
  for (const Entry& entry : Reversed(entries_)) {
    if (auto scope = entry.strategy->unshard_parameters())
      open.insert(open.begin(), std::move(scope));
  }
  return open;
}

std::exception_ptr StrategyList::on_failure(const std::exception& error) {
  std::exception_ptr first;
  for (const Entry& entry : Reversed(entries_)) {
    try {
      entry.strategy->on_failure(error);
    } catch (...) {
      if (!first) first = std::current_exception();
    }
  }
  return first;
}

void StrategyList::begin_join(JoinRound& round, int model) {
  for (const Entry& entry : entries_) {
    if (auto* participant = entry.strategy->join_participant())
      participant->begin_join(round, model);
  }
}

void StrategyList::shadow(const JoinEvent& event) {
  for (const Entry& entry : entries_) {
    if (auto* participant = entry.strategy->join_participant())
      participant->shadow(event);
  }
}

void StrategyList::end_join() {
  for (const Entry& entry : Reversed(entries_)) {
    if (auto* participant = entry.strategy->join_participant())
      participant->end_join();
  }
}

StateDict StrategyList::state_dict() const {
  StateDict all;
  for (const Entry& entry : entries_) {
    const StrategyState* const state = entry.strategy->state();
    if (state == nullptr) continue;
    StateDict own = state->state_dict();
    if (!own.empty()) all.set(entry.name, std::move(own));
  }
  return all;
}

SharedStates StrategyList::shared_states() const {
  SharedStates all;
  for (const Entry& entry : entries_) {
    const StrategyState* const state = entry.strategy->state();
    if (state == nullptr) continue;
    for (SharedState& each : state->shared_states()) {
      each.name = format("{}/{}", entry.name, each.name);
      all.push_back(std::move(each));
    }
  }
  return all;
}

void StrategyList::load_shared_states(const SavedSharedStates& saved) {
  for (const Entry& entry : entries_) {
    StrategyState* const state = entry.strategy->state();
    if (state == nullptr) continue;
    const std::string prefix = entry.name + "/";
    SavedSharedStates own;
    for (const auto& [name, tensor] : saved) {
      if (name.starts_with(prefix))
        own.emplace(name.substr(prefix.size()), tensor);
    }
    if (!own.empty()) state->load_shared_states(own);
  }
}

std::vector<std::string> StrategyList::load_state_dict(const StateDict& saved) {
  std::vector<std::string> unclaimed;
  for (const auto& [key, value] : saved.values()) {
    const std::string_view name = name_of_key(key);
    Strategy* const strategy = find(name);
    StrategyState* const state =
        strategy == nullptr ? nullptr : strategy->state();
    if (state == nullptr) {
      unclaimed.emplace_back(name);
    } else {
      state->load_state_dict(saved.get<StateDict>(key));
    }
  }
  return unclaimed;
}

void StrategyList::merge_traits() {
  traits_ = {.is_idle = true};
  for (const Entry& entry : entries_) {
    const StrategyTraits own = entry.strategy->traits();
    traits_.takes_empty = traits_.takes_empty || own.takes_empty;
    traits_.needs_outputs = traits_.needs_outputs || own.needs_outputs;
    if (own.input_dtype) traits_.input_dtype = own.input_dtype;
    if (own.output_dtype) traits_.output_dtype = own.output_dtype;
    append_line(traits_.join_complaint, own.join_complaint);
    append_line(traits_.local_sgd_complaint, own.local_sgd_complaint);
    append_line(traits_.lomo_complaint, own.lomo_complaint);
    append_line(traits_.sliced_lomo_complaint, own.sliced_lomo_complaint);
    append_line(traits_.clipping_complaint, own.clipping_complaint);
    traits_.steps_in_parts = traits_.steps_in_parts || own.steps_in_parts;
    traits_.is_idle = traits_.is_idle && own.is_idle;
  }
}

Strategy* StrategyList::find(std::string_view name) const {
  for (const Entry& entry : entries_) {
    if (entry.name == name) return entry.strategy.get();
  }
  return nullptr;
}

}  // namespace accelerate::detail
