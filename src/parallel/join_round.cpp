#include "parallel/join_round.h"

#include <ATen/Functions.h>

#include <accelerate/error.h>

#include "base/text/text.h"

namespace accelerate::detail {

namespace {

// Encodes an event as a number above 0.
std::int64_t code_of(const JoinEvent& event) {
  return static_cast<std::int64_t>(event.kind) |
      static_cast<std::int64_t>(event.model) << 4 |
      static_cast<std::int64_t>(event.bucket) << 32;
}

JoinEvent event_of(std::int64_t code) {
  return {
      static_cast<JoinEvent::Kind>(code & 0xf),
      static_cast<int>(code >> 4 & 0xfffffff),
      static_cast<int>(code >> 32)};
}

}  // namespace

std::optional<JoinEvent> JoinRound::announce(
    const std::optional<JoinEvent>& mine) {
  const at::Tensor codes = at::zeros({group_.size()}, at::kLong);
  auto* const code = codes.data_ptr<std::int64_t>();
  if (mine) code[group_.rank()] = code_of(*mine);
  group_.all_reduce(codes);
  int num_active = 0;
  int first = -1;
  for (int rank = 0; rank < group_.size(); ++rank) {
    if (code[rank] == 0) continue;
    ++num_active;
    if (first < 0) {
      first = rank;
    } else if (code[rank] != code[first]) {
      throw DistributedError(format(
          "[parallel] ranks {} and {} average gradients of different models "
          "inside join_uneven_inputs; every rank must run the same backward "
          "passes in the same order",
          group_.world_ranks()[static_cast<std::size_t>(first)],
          group_.world_ranks()[static_cast<std::size_t>(rank)]));
    }
  }
  if (num_active == 0) return std::nullopt;
  num_active_ = num_active;
  first_active_ = first;
  return event_of(code[first]);
}

}  // namespace accelerate::detail
