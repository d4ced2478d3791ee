#include "parallel/expert/token_plan.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include "parallel/expert/unrecorded.h"

namespace accelerate::detail {

namespace {

using Counts = std::vector<std::int64_t>;

// Like at::bincount(), for which the host waits for CUDA devices.
at::Tensor count(const at::Tensor& experts, std::int64_t num_experts) {
  return at::zeros({num_experts}, experts.options())
      .scatter_add_(0, experts, at::ones_like(experts));
}

at::Tensor places_of(const at::Tensor& experts) {
  return at::arange(experts.numel(), experts.options());
}

// Shuffles slots that are sorted by expert, within experts that have more than
// `capacity`.
at::Tensor shuffled(
    const at::Tensor& slots,
    const at::Tensor& assigned,
    std::int64_t capacity) {
  // On the host: the CPU's generator draws, once per expert.
  const at::Tensor counts = assigned.cpu();
  std::vector<at::Tensor> places;
  std::int64_t first = 0;
  for (std::int64_t e = 0; e < counts.numel(); ++e) {
    const std::int64_t num = counts.const_data_ptr<std::int64_t>()[e];
    places.push_back(
        (num > capacity ? at::randperm(num, at::kLong)
                        : at::arange(num, at::kLong)) +
        first);
    first += num;
  }
  return slots.index_select(0, at::cat(places).to(slots.device()));
}

// Returns the expert of each slot; `assigned.numel()` for slots that experts
// drop.
at::Tensor without_dropped(
    const at::Tensor& experts,
    const at::Tensor& weights,
    const at::Tensor& assigned,
    std::int64_t capacity,
    TokenDrop drop) {
  const at::Tensor order = drop == TokenDrop::lowest_weight
      ? at::argsort(
            weights.reshape({-1}), /*stable=*/true, 0, /*descending=*/true)
      : places_of(experts);
  const auto [sorted, places] = at::sort(
      experts.index_select(0, order), /*stable=*/true, 0, /*descending=*/false);
  at::Tensor slots = order.index_select(0, places);
  if (drop == TokenDrop::random) slots = shuffled(slots, assigned, capacity);
  const at::Tensor begins = assigned.cumsum(0) - assigned;
  const at::Tensor is_kept =
      places_of(experts) - begins.index_select(0, sorted) < capacity;
  return at::empty_like(experts).scatter_(
      0, slots, at::where(is_kept, sorted, assigned.numel()));
}

}  // namespace

std::int64_t TokenPlan::num_dropped() const {
  return std::accumulate(assigned.begin(), assigned.end(), std::int64_t{0}) -
      std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
}

TokenPlan plan_tokens(
    const Routing& routing,
    std::int64_t num_experts,
    std::int64_t capacity,
    TokenDrop drop,
    const Group& ranks) {
  // Decided once, not again in a recomputed forward, which cannot replay other
  // ranks' counts.
  const Unrecorded unrecorded;
  at::Tensor experts = routing.experts.detach().reshape({-1});
  TokenPlan plan;
  plan.num_assigned = count(experts, num_experts);
  at::Tensor kept = plan.num_assigned;
  if (capacity >= 0) {
    kept = kept.clamp_max(capacity);
    experts = without_dropped(
        experts,
        routing.weights.detach().to(at::kFloat),
        plan.num_assigned,
        capacity,
        drop);
  }
  const at::Tensor slots =
      at::argsort(experts, /*stable=*/true, 0, /*descending=*/false);
  plan.counts_of_ranks = at::stack(ranks.all_gather(kept));
  const at::Tensor all =
      at::cat({plan.num_assigned.unsqueeze(0), plan.counts_of_ranks});
  // On the host: these are sizes of tensors.
  const at::Tensor read = all.cpu();
  const auto* const values = read.const_data_ptr<std::int64_t>();
  const auto row = [&](std::int64_t number) {
    return Counts(
        values + number * num_experts, values + (number + 1) * num_experts);
  };
  plan.assigned = row(0);
  for (std::int64_t rank = 0; rank < ranks.size(); ++rank)
    plan.host_counts_of_ranks.push_back(row(1 + rank));
  plan.counts =
      plan.host_counts_of_ranks[static_cast<std::size_t>(ranks.rank())];
  plan.slots = slots.narrow(
      0,
      0,
      std::accumulate(plan.counts.begin(), plan.counts.end(), std::int64_t{0}));
  plan.tokens = at::floor_divide(plan.slots, routing.experts.size(1));
  return plan;
}

std::int64_t capacity_of(
    const RouterOptions& options,
    std::int64_t num_experts,
    std::int64_t num_tokens,
    bool is_training) {
  std::optional<double> factor = options.capacity_factor;
  if (!is_training && options.eval_capacity_factor)
    factor = options.eval_capacity_factor;
  if (!factor) return -1;
  const double mean = static_cast<double>(num_tokens * options.top_k) /
      static_cast<double>(num_experts);
  // A product that is just above an integer because of rounding counts as that
  // integer.
  const double capacity = std::ceil(*factor * mean * (1 - 1e-12));
  return std::max(
      options.min_capacity,
      static_cast<std::int64_t>(
          std::min(capacity, static_cast<double>(num_tokens))));
}

}  // namespace accelerate::detail
