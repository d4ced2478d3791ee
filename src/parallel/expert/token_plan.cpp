#include "parallel/expert/token_plan.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include <ATen/Functions.h>

#include "parallel/expert/unrecorded.h"

namespace accelerate::detail {

namespace {

using Slots = std::vector<std::int64_t>;

// Keeps `capacity` of an expert's slots, in their order.
void drop_slots(
    Slots& slots,
    std::int64_t capacity,
    TokenDrop drop,
    const float* weights) {
  const auto kept = static_cast<std::size_t>(capacity);
  if (slots.size() <= kept) return;
  if (drop == TokenDrop::lowest_weight) {
    std::stable_sort(
        slots.begin(), slots.end(), [&](std::int64_t a, std::int64_t b) {
          return weights[a] > weights[b];
        });
  } else if (drop == TokenDrop::random) {
    const at::Tensor order = at::randperm(std::ssize(slots));
    const auto* const places = order.const_data_ptr<std::int64_t>();
    Slots shuffled;
    for (std::size_t i = 0; i < kept; ++i)
      shuffled.push_back(slots[static_cast<std::size_t>(places[i])]);
    slots = std::move(shuffled);
  }
  slots.resize(kept);
  std::sort(slots.begin(), slots.end());
}

at::Tensor to_tensor(const Slots& numbers, at::Device device) {
  return at::tensor(numbers, at::kLong).to(device);
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
    TokenDrop drop) {
  // Decided once, not again in a recomputed forward.
  const Unrecorded unrecorded;
  const std::int64_t top_k = routing.experts.size(1);
  const at::Tensor experts = routing.experts.detach().to(at::kCPU).contiguous();
  const at::Tensor weights =
      routing.weights.detach().to(at::kCPU, at::kFloat).contiguous();
  const auto* const chosen = experts.const_data_ptr<std::int64_t>();
  std::vector<Slots> by_expert(static_cast<std::size_t>(num_experts));
  for (std::int64_t slot = 0; slot < experts.numel(); ++slot)
    by_expert[static_cast<std::size_t>(chosen[slot])].push_back(slot);
  TokenPlan plan;
  Slots slots, tokens;
  for (Slots& own : by_expert) {
    plan.assigned.push_back(std::ssize(own));
    if (capacity >= 0)
      drop_slots(own, capacity, drop, weights.const_data_ptr<float>());
    plan.counts.push_back(std::ssize(own));
    for (const std::int64_t slot : own) {
      slots.push_back(slot);
      tokens.push_back(slot / top_k);
    }
  }
  plan.slots = to_tensor(slots, routing.experts.device());
  plan.tokens = to_tensor(tokens, routing.experts.device());
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
