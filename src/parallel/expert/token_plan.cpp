#include "parallel/expert/token_plan.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include "comm/group/group_impl.h"
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
// `capacity`. In host memory: once per expert.
at::Tensor shuffled(
    const at::Tensor& slots,
    const at::Tensor& assigned,
    std::int64_t capacity) {
  std::vector<at::Tensor> places;
  std::int64_t first = 0;
  for (std::int64_t e = 0; e < assigned.numel(); ++e) {
    const std::int64_t num = assigned.const_data_ptr<std::int64_t>()[e];
    places.push_back(
        (num > capacity ? at::randperm(num, at::kLong)
                        : at::arange(num, at::kLong)) +
        first);
    first += num;
  }
  return slots.index_select(0, at::cat(places));
}

// The order in which experts take slots.
at::Tensor
order_of(const at::Tensor& experts, const at::Tensor& weights, TokenDrop drop) {
  if (drop == TokenDrop::lowest_weight) {
    return at::argsort(
        weights.reshape({-1}), /*stable=*/true, 0, /*descending=*/true);
  }
  if (drop == TokenDrop::random && !experts.is_cpu())
    return at::randperm(experts.numel(), experts.options());
  return places_of(experts);
}

// Returns the expert of each slot; `assigned.numel()` for slots that experts
// drop.
at::Tensor without_dropped(
    const at::Tensor& experts,
    const at::Tensor& weights,
    const at::Tensor& assigned,
    std::int64_t capacity,
    TokenDrop drop) {
  const at::Tensor order = order_of(experts, weights, drop);
  const auto [sorted, places] = at::sort(
      experts.index_select(0, order), /*stable=*/true, 0, /*descending=*/false);
  at::Tensor slots = order.index_select(0, places);
  if (drop == TokenDrop::random && slots.is_cpu())
    slots = shuffled(slots, assigned, capacity);
  const at::Tensor begins = assigned.cumsum(0) - assigned;
  const at::Tensor is_kept =
      places_of(experts) - begins.index_select(0, sorted) < capacity;
  return at::empty_like(experts).scatter_(
      0, slots, at::where(is_kept, sorted, assigned.numel()));
}

// Number of rows of each expert, per rank, of padded plans.
Counts padded_rows(
    std::int64_t num_tokens,
    std::int64_t num_experts,
    const RouterOptions& options,
    bool is_training,
    const Group& ranks) {
  Counts rows;
  // In host memory: ranks may have different numbers of tokens.
  for (const at::Tensor& each :
       ranks.all_gather(at::full({1}, num_tokens, at::kLong))) {
    const std::int64_t tokens = each.item<std::int64_t>();
    rows.push_back(std::min(
        tokens, capacity_of(options, num_experts, tokens, is_training)));
  }
  return rows;
}

// `slots`: sorted by expert, first those that are not dropped.
void pad(
    TokenPlan& plan,
    const at::Tensor& slots,
    const Counts& rows,
    int own) {
  const auto num_experts = plan.num_kept.numel();
  const std::int64_t capacity = rows[static_cast<std::size_t>(own)];
  std::vector<at::Tensor> counts;
  for (const std::int64_t each : rows) {
    counts.push_back(at::full({num_experts}, each, slots.options()));
    plan.host_counts_of_ranks.emplace_back(num_experts, each);
  }
  plan.counts_of_ranks = at::stack(counts);
  plan.is_padded = true;
  plan.slots = at::empty({0}, slots.options());
  if (capacity == 0) return;
  const at::Tensor places = at::arange(capacity, slots.options()).unsqueeze(0);
  const at::Tensor begins = plan.num_kept.cumsum(0) - plan.num_kept;
  const at::Tensor found = slots.index_select(
      0, (begins.unsqueeze(1) + places).clamp_max(slots.numel() - 1).flatten());
  plan.slots = at::where(
      (places < plan.num_kept.unsqueeze(1)).flatten(), found, slots.numel());
}

void read_counts(TokenPlan& plan, const at::Tensor& slots, const Group& ranks) {
  const auto num_experts = plan.num_kept.numel();
  plan.counts_of_ranks = at::stack(ranks.all_gather(plan.num_kept));
  // On the host: sizes of the tensors that are sent, received and computed with.
  const at::Tensor read = plan.counts_of_ranks.cpu();
  require_intact(ranks, "all_gather");
  const auto* const values = read.const_data_ptr<std::int64_t>();
  for (std::int64_t rank = 0; rank < ranks.size(); ++rank) {
    plan.host_counts_of_ranks.emplace_back(
        values + rank * num_experts, values + (rank + 1) * num_experts);
  }
  const Counts& own =
      plan.host_counts_of_ranks[static_cast<std::size_t>(ranks.rank())];
  plan.slots = slots.narrow(
      0, 0, std::accumulate(own.begin(), own.end(), std::int64_t{0}));
}

}  // namespace

TokenPlan plan_tokens(
    const Routing& routing,
    std::int64_t num_experts,
    const RouterOptions& options,
    bool is_training,
    const Group& ranks) {
  // Decided once, not again in a recomputed forward, which cannot replay other
  // ranks' counts.
  const Unrecorded unrecorded;
  at::Tensor experts = routing.experts.detach().reshape({-1});
  const std::int64_t num_tokens = routing.experts.size(0);
  const std::int64_t top_k = routing.experts.size(1);
  const std::int64_t capacity =
      capacity_of(options, num_experts, num_tokens, is_training);
  TokenPlan plan;
  plan.num_assigned = count(experts, num_experts);
  plan.num_kept = plan.num_assigned;
  if (capacity >= 0) {
    plan.num_kept = plan.num_assigned.clamp_max(capacity);
    experts = without_dropped(
        experts,
        routing.weights.detach().to(at::kFloat),
        plan.num_assigned,
        capacity,
        options.drop);
  }
  const at::Tensor slots =
      at::argsort(experts, /*stable=*/true, 0, /*descending=*/false);
  if (capacity >= 0 && !experts.is_cpu()) {
    pad(plan,
        slots,
        padded_rows(num_tokens, num_experts, options, is_training, ranks),
        ranks.rank());
    const at::Tensor is_row = plan.slots < slots.numel();
    plan.tokens = at::where(is_row, at::floor_divide(plan.slots, top_k), 0);
  } else {
    read_counts(plan, slots, ranks);
    plan.tokens = at::floor_divide(plan.slots, top_k);
  }
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
