#include "train/checkpoints/checkpoint_components.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include "checkpoint/components/optimizers.h"
#include "checkpoint/components/parameter_names.h"
#include "checkpoint/components/states.h"
#include "checkpoint/run/checkpoints.h"
#include "train/models/staged_model.h"
#include "train/optimizers/schedule_adapter.h"
#include "train/session/session.h"

namespace accelerate::detail {

namespace {

template <class T>
AnyStateful stateful(T& object) {
  return {
      [&object] { return object.state_dict(); },
      [&object](const StateDict& state) { object.load_state_dict(state); }};
}

std::vector<torch::optim::Optimizer*> optimizers_of(const Session& session) {
  std::vector<torch::optim::Optimizer*> optimizers;
  for (const auto& optimizer : session.prepared.optimizers) {
    if (optimizer->inner != nullptr) optimizers.push_back(optimizer->inner);
  }
  return optimizers;
}

// A schedule whose saved state includes the number of its optimizer, since
// PyTorch's schedules keep entries in the optimizer's groups.
AnyStateful schedule_with_optimizer(
    ScheduleAdapter& schedule,
    const std::vector<torch::optim::Optimizer*>& optimizers) {
  AnyStateful object = stateful(schedule);
  const auto found = std::ranges::find(optimizers, schedule.optimizer());
  if (found == optimizers.end()) return object;
  object.state_dict = [&schedule, number = found - optimizers.begin()] {
    StateDict state = schedule.state_dict();
    state.set("optimizer", static_cast<std::int64_t>(number));
    return state;
  };
  return object;
}

std::vector<AnyStateful> schedulers_of(const Session& session) {
  const std::vector<torch::optim::Optimizer*> optimizers =
      optimizers_of(session);
  std::vector<AnyStateful> schedulers;
  for (const auto& scheduler : session.prepared.schedulers) {
    if (scheduler->schedule) {
      schedulers.push_back(
          schedule_with_optimizer(*scheduler->schedule, optimizers));
    }
  }
  return schedulers;
}

StrategyStates strategies_of(PreparedModel& model) {
  return {
      placed(model),
      [&model] { return model.strategies.state_dict(); },
      [&model](const StateDict& saved) {
        return model.strategies.load_state_dict(saved);
      },
      [&model] { return model.strategies.shared_states(); },
      [&model](const SavedSharedStates& saved) {
        model.strategies.load_shared_states(saved);
      }};
}

bool with_optimizers(const Session& session, CheckpointUse use) {
  const CheckpointRequest& request =
      session.layout.plan_request.training.checkpoints;
  return session.services.checkpoints->is_whole ||
      (use == CheckpointUse::save ? request.saves_optimizers
                                  : request.loads_optimizers);
}

/// Makes strategies give the optimizers their whole state while the component
/// reads or replaces it.
class WholeOptimizers final : public CheckpointComponent {
 public:
  WholeOptimizers(
      const Session& session,
      std::shared_ptr<CheckpointComponent> component)
      : session_(session), component_(std::move(component)) {}

  [[nodiscard]] std::string_view key() const override {
    return component_->key();
  }
  void collect(CheckpointContents& contents) const override {
    for_each_pair(&StrategyList::unpack_optimizer_state);
    component_->collect(contents);
    for_each_pair(&StrategyList::pack_optimizer_state);
  }
  [[nodiscard]] std::vector<std::string> check(
      const CheckpointSource& source,
      const MatchRules& rules) override {
    return component_->check(source, rules);
  }
  void load(const CheckpointSource& source, const MatchRules& rules) override {
    for_each_pair(&StrategyList::unpack_optimizer_state);
    component_->load(source, rules);
    for_each_pair(&StrategyList::pack_optimizer_state);
  }

 private:
  void for_each_pair(
      void (StrategyList::*event)(torch::optim::Optimizer&)) const {
    for (torch::optim::Optimizer* const optimizer : optimizers_of(session_))
      for (const auto& model : session_.prepared.models)
        (model->strategies.*event)(*optimizer);
  }

  const Session& session_;
  std::shared_ptr<CheckpointComponent> component_;
};

// Schedules first, then optimizers, whose learning rates schedules change.
ComponentList optimizer_components(
    const Session& session,
    const std::vector<PlacedModel>& models,
    CheckpointUse use) {
  settle_steps(session);
  const bool is_whole = with_optimizers(session, use);
  const bool loads_masters = use == CheckpointUse::load && !is_whole;
  auto optimizers = is_whole || loads_masters
      ? optimizers_of(session)
      : std::vector<torch::optim::Optimizer*>();
  auto component = std::make_shared<WholeOptimizers>(
      session,
      std::make_shared<OptimizerComponent>(
          std::move(optimizers),
          ParameterNames(models),
          session.services.checkpoints->writer_rule(),
          session.layout.mesh,
          session.world.device(),
          loads_masters ? OptimizerParts::master_weights
                        : OptimizerParts::all));
  if (loads_masters) return {std::move(component)};
  auto schedulers =
      is_whole ? schedulers_of(session) : std::vector<AnyStateful>();
  return {
      std::make_shared<StateListComponent>("schedulers", std::move(schedulers)),
      std::move(component)};
}

}  // namespace

std::vector<PreparedModel*> live_models(const Session& session) {
  std::vector<PreparedModel*> models;
  for (const auto& model : session.prepared.models) {
    if (model->module) models.push_back(model.get());
  }
  return models;
}

PlacedModel placed(const PreparedModel& model) {
  return {
      model.module.get(),
      &model.table,
      &model.mesh,
      model.stage ? &model.stage->others : nullptr};
}

ComponentList components_of(
    Session& session,
    const std::vector<bool>& with_weights,
    CheckpointUse use) {
  follow_modules(session.prepared);
  CheckpointState& checkpoints = *session.services.checkpoints;
  const WriterRule writes = checkpoints.writer_rule();
  const at::Device device = session.world.device();
  std::vector<PlacedModel> models;
  std::vector<StrategyStates> strategies;
  for (PreparedModel* model : live_models(session)) {
    models.push_back(placed(*model));
    strategies.push_back(strategies_of(*model));
  }
  std::optional<AnyStateful> scaler;
  if (session.scaling.scaler) scaler = stateful(*session.scaling.scaler);

  ComponentList list{
      std::make_shared<ModelComponent>(models, with_weights, writes)};
  const auto append = [&list](const ComponentList& more) {
    list.insert(list.end(), more.begin(), more.end());
  };
  append(optimizer_components(session, models, use));
  append(
      {std::make_shared<ScalerComponent>(std::move(scaler)),
       std::make_shared<StateListComponent>("objects", checkpoints.objects),
       std::make_shared<LoaderComponent>(checkpoints.live_loaders()),
       std::make_shared<StateComponent>("step", stateful(session.clock)),
       std::make_shared<StrategyComponent>(
           std::move(strategies), writes, session.world.logger())});
  append(checkpoints.components);
  // Last, since others may draw random numbers.
  list.push_back(std::make_shared<StateComponent>(
      "random", random_states(device), StateUse::per_rank));
  return list;
}

}  // namespace accelerate::detail
