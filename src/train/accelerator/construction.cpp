#include <optional>
#include <utility>

#include <ATen/Functions.h>

#include <accelerate/accelerator.h>
#include <accelerate/empty_weights.h>

#include "checkpoint/components/states.h"
#include "params/layout.h"
#include "train/session/session.h"

namespace accelerate {

namespace detail {

struct ModelConstruction::Scope {
  explicit Scope(Group ranks)
      : group(std::move(ranks)), state_before(generator_state(at::kCPU)) {}

  Group group;
  at::Tensor state_before;
  std::optional<EmptyWeightsScope> empty = std::nullopt;
};

ModelConstruction::ModelConstruction(const Mesh& mesh, bool only_on_rank_0) {
  const Group group = replica_group(Layout(), mesh);
  if (!only_on_rank_0 || group.size() == 1) return;
  scope_ = std::make_unique<Scope>(group);
  if (group.rank() != 0) scope_->empty.emplace(/*include_buffers=*/true);
}

ModelConstruction::~ModelConstruction() = default;
ModelConstruction::ModelConstruction(ModelConstruction&&) noexcept = default;

void ModelConstruction::finish() {
  if (!scope_) return;
  scope_->empty.reset();
  // Only rank 0 has drawn random numbers. Ranks whose generators were in the
  // same state before adopt rank 0's state after drawing.
  const Group& group = scope_->group;
  const at::Tensor before = scope_->state_before.clone();
  const at::Tensor after = generator_state(at::kCPU);
  group.broadcast(before, 0);
  group.broadcast(after, 0);
  if (!at::equal(before, scope_->state_before)) return;
  set_generator_state(at::kCPU, after);
}

}  // namespace detail

detail::ModelConstruction Accelerator::begin_construction() const {
  return {mesh(), session_->layout.plan.makes_on_rank_0};
}

}  // namespace accelerate
