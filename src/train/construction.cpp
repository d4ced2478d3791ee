#include <mutex>
#include <optional>

#include <ATen/Context.h>
#include <ATen/Functions.h>

#include <accelerate/accelerator.h>
#include <accelerate/empty_weights.h>

#include "train/session.h"

namespace accelerate {

namespace detail {

namespace {

at::Tensor random_state() {
  at::Generator generator = at::globalContext().defaultGenerator(at::kCPU);
  const std::lock_guard lock(generator.mutex());
  return generator.get_state().clone();
}

}  // namespace

struct ModelConstruction::Scope {
  explicit Scope(const World& everybody)
      : world(everybody), state_before(random_state()) {}

  World world;
  at::Tensor state_before;
  std::optional<InitEmptyWeights> empty = std::nullopt;
};

ModelConstruction::ModelConstruction(const World& world, bool only_on_rank_0) {
  if (!only_on_rank_0 || world.size() == 1) return;
  scope_ = std::make_unique<Scope>(world);
  if (world.rank() != 0) scope_->empty.emplace();
}

ModelConstruction::~ModelConstruction() = default;
ModelConstruction::ModelConstruction(ModelConstruction&&) noexcept = default;

void ModelConstruction::finish() {
  if (!scope_) return;
  scope_->empty.reset();
  // Rank 0 drew numbers that the others did not.
  const Group& group = scope_->world.group();
  const at::Tensor before = scope_->state_before.clone();
  const at::Tensor after = random_state();
  group.broadcast(before, 0);
  group.broadcast(after, 0);
  if (!at::equal(before, scope_->state_before)) return;
  at::Generator generator = at::globalContext().defaultGenerator(at::kCPU);
  const std::lock_guard lock(generator.mutex());
  generator.set_state(after);
}

}  // namespace detail

detail::ModelConstruction Accelerator::begin_construction() const {
  return {world(), session_->plan.makes_on_rank_0};
}

}  // namespace accelerate
