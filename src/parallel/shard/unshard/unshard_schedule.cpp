#include "parallel/shard/unshard/unshard_schedule.h"

#include <utility>

#include <ATen/core/grad_mode.h>

namespace accelerate::detail {

namespace {

// A unit stays unsharded if it is among this many units used next.
constexpr std::size_t kKept = 2;

}  // namespace

void UnshardSchedule::begin(Pass pass) {
  pass_ = pass;
  order().begin();
}

void UnshardSchedule::before_read(std::size_t unit, bool is_filled) {
  if (current_ == unit && (is_filled || units_[unit]->is_unsharded())) return;
  order().touch(unit);
  units_[unit]->start_gather();
  units_[unit]->finish_gather();
  const auto previous = std::exchange(current_, unit);
  const bool is_backward = pass_ == Pass::backward;
  const bool frees = is_backward || options_.reshards_after_forward;
  if (previous && *previous != unit && frees && !is_due_soon(*previous)) {
    units_[*previous]->reshard(
        /*to_reshard_group=*/!is_backward && at::GradMode::is_enabled());
  }
  if (!(options_.prefetches_after_gradients && is_backward)) prefetch(unit);
}

void UnshardSchedule::prefetch(std::size_t unit) {
  const bool prefetches = pass_ == Pass::backward ? options_.prefetches_backward
                                                  : options_.prefetches_forward;
  if (!prefetches) return;
  for (const std::size_t next : order().next(options_.prefetch_depth)) {
    if (next != unit) units_[next]->start_gather();
  }
  if (options_.disk) read_ahead(unit);
}

// What is gathered later is read from its file meanwhile.
void UnshardSchedule::read_ahead(std::size_t unit) {
  const auto all = order().next(units_.size());
  std::int64_t num_elements = 0;
  for (const std::size_t later :
       all.subspan(std::min(options_.prefetch_depth, all.size()))) {
    if (later == unit) continue;
    units_[later]->begin_fetch();
    num_elements += units_[later]->shards().num_elements();
    if (num_elements >= options_.disk->elements_ahead) return;
  }
}

bool UnshardSchedule::is_due_soon(std::size_t unit) const {
  return orders_[static_cast<std::size_t>(pass_)].is_due_soon(unit, kKept);
}

void UnshardSchedule::reshard_after_forward(bool is_held_open) {
  const bool keeps_last = at::GradMode::is_enabled();
  const bool keeps_all =
      is_held_open || (keeps_last && !options_.reshards_after_forward);
  for (const std::size_t u : own_) {
    // The backward begins with the unit that computed last.
    if (keeps_all || (keeps_last && current_ == u)) continue;
    units_[u]->finish_gather();
    units_[u]->reshard(/*to_reshard_group=*/keeps_last);
  }
  if (!keeps_last) forget();
}

void UnshardSchedule::reshard_all() {
  for (const std::size_t u : own_) {
    units_[u]->finish_gather();
    units_[u]->reshard();
  }
  forget();
}

}  // namespace accelerate::detail
