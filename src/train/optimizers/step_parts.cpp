#include "train/optimizers/step_parts.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <span>
#include <unordered_set>
#include <utility>
#include <vector>

#include <torch/optim/optimizer.h>

#include "train/session/prepared.h"
#include "train/step/step_watch.h"

namespace accelerate::detail {

namespace {

// Takes the parameters out of an optimizer's groups, and puts them back at the
// end.
class GroupParameters {
 public:
  explicit GroupParameters(torch::optim::Optimizer& optimizer)
      : optimizer_(optimizer) {
    for (auto& group : optimizer.param_groups())
      all_.push_back(std::exchange(group.params(), {}));
  }
  GroupParameters(const GroupParameters&) = delete;
  GroupParameters& operator=(const GroupParameters&) = delete;
  ~GroupParameters() {
    for (std::size_t g = 0; g < all_.size(); ++g)
      optimizer_.param_groups()[g].params() = std::move(all_[g]);
  }

  // Each group has those of its parameters for which `is_chosen`.
  template <class IsChosen>
  void choose(IsChosen&& is_chosen) {
    for (std::size_t g = 0; g < all_.size(); ++g) {
      auto& chosen = optimizer_.param_groups()[g].params();
      chosen.clear();
      std::ranges::copy_if(all_[g], std::back_inserter(chosen), is_chosen);
    }
  }

 private:
  torch::optim::Optimizer& optimizer_;
  std::vector<std::vector<at::Tensor>> all_;
};

using Identities = std::unordered_set<const void*>;

bool has_any(const torch::optim::Optimizer& optimizer, const Identities& of) {
  return std::ranges::any_of(optimizer.param_groups(), [&](const auto& group) {
    return std::ranges::any_of(group.params(), [&](const at::Tensor& each) {
      return of.contains(each.unsafeGetTensorImpl());
    });
  });
}

void add_to(Identities& identities, const ParameterPart& part) {
  for (const at::Tensor& parameter : part)
    identities.insert(parameter.unsafeGetTensorImpl());
}

}  // namespace

void step_in_parts(
    const PreparedItems& prepared,
    torch::optim::Optimizer& optimizer,
    const std::function<void()>& step) {
  std::vector<StrategyList::OwnedParts> all;
  for (const auto& model : prepared.models) {
    for (auto& owned : model->strategies.step_parts(optimizer))
      all.push_back(std::move(owned));
  }
  GroupParameters groups(optimizer);
  Identities of_parts;
  for (const auto& [strategy, parts] : all) {
    for (std::size_t i = 0; i < parts.size(); ++i) {
      Identities chosen;
      add_to(chosen, parts[i]);
      add_to(of_parts, parts[i]);
      groups.choose([&](const at::Tensor& parameter) {
        return chosen.contains(parameter.unsafeGetTensorImpl());
      });
      strategy->before_part(optimizer, std::span(parts).subspan(i));
      step();
      strategy->after_part(optimizer, parts[i]);
    }
  }
  // What no strategy asks for is in memory.
  groups.choose([&](const at::Tensor& parameter) {
    return !of_parts.contains(parameter.unsafeGetTensorImpl());
  });
  step();
}

void step_on_part(
    const PreparedItems& prepared,
    Strategy& strategy,
    std::span<const ParameterPart> parts) {
  const LibraryCall call;
  Identities chosen;
  add_to(chosen, parts.front());
  for (const auto& each : prepared.optimizers) {
    if (each->inner == nullptr || !has_any(*each->inner, chosen)) continue;
    torch::optim::Optimizer& optimizer = *each->inner;
    for (const auto& model : prepared.models)
      model->strategies.unpack_optimizer_state(optimizer);
    strategy.before_part(optimizer, parts);
    {
      GroupParameters groups(optimizer);
      groups.choose([&](const at::Tensor& parameter) {
        return chosen.contains(parameter.unsafeGetTensorImpl());
      });
      step_at_once(*each, nullptr);
    }
    strategy.after_part(optimizer, parts.front());
    for (const auto& model : prepared.models)
      model->strategies.pack_optimizer_state(optimizer);
  }
}

at::Tensor step_at_once(
    const PreparedOptimizer& prepared,
    const LossClosure& closure,
    const at::Tensor& divisor) {
  return prepared.fused_step != nullptr
      ? prepared.fused_step(*prepared.inner, closure, divisor)
      : prepared.inner->step(closure);
}

}  // namespace accelerate::detail
