#include "parallel/shard/reduction/gradient_reducer.h"

#include <utility>

#include <ATen/core/grad_mode.h>

namespace accelerate::detail {

namespace {

std::vector<bool> silent_among(
    const std::vector<std::unique_ptr<ShardUnit>>& units) {
  std::vector<bool> is_silent;
  for (const auto& unit : units)
    is_silent.push_back(unit->num_trainable() == 0);
  return is_silent;
}

std::vector<bool> partial_among(
    const std::vector<std::unique_ptr<ShardUnit>>& units,
    const ShardTraffic& comparing) {
  std::vector<bool> is_partial;
  for (const auto& unit : units)
    is_partial.push_back(&unit->traffic() != &comparing);
  return is_partial;
}

}  // namespace

GradientReducer::GradientReducer(
    const std::vector<std::unique_ptr<ShardUnit>>& units,
    const ShardTraffic& comparing,
    std::function<void(std::size_t unit)> on_reduced)
    : units_(units),
      comparing_(comparing),
      on_reduced_(std::move(on_reduced)),
      order_(silent_among(units), partial_among(units, comparing)),
      progress_(units.size()) {}

std::set<ShardTraffic*> GradientReducer::traffics() const {
  std::set<ShardTraffic*> all;
  for (const auto& unit : units_) all.insert(&unit->traffic());
  return all;
}

void GradientReducer::begin() {
  order_.begin();
  all_alike_ = true;
  for (ShardTraffic* const each : traffics()) each->begin_backward();
}

bool GradientReducer::is_sent_alone(std::size_t unit, std::size_t place) const {
  return traffic(unit).is_sent_alone(shards(unit).trained(place));
}

void GradientReducer::send(std::size_t unit, std::size_t place) {
  if (!is_sent_alone(unit, place)) return;
  make_room(unit);
  take(unit, place);
}

void GradientReducer::take(std::size_t unit, std::size_t place) {
  flush_staged();
  const at::NoGradGuard no_grad;
  traffic(unit).take_gradient(shards(unit), place);
  auto& is_taken = progress_[unit].is_taken;
  is_taken.resize(units_[unit]->num_trainable());
  is_taken[place] = true;
  taken_ = GradientMessage{unit, place};
  if (!traffic(unit).stages_gradients()) flush_staged();
}

void GradientReducer::flush_staged() {
  if (!taken_) return;
  const at::NoGradGuard no_grad;
  const GradientMessage message = *std::exchange(taken_, std::nullopt);
  traffic(message.unit).start_reduce(shards(message.unit), message.place);
  note(message);
}

void GradientReducer::note(const GradientMessage& message) {
  order_.send(message);
  in_flight_.push_back(message);
}

void GradientReducer::complete(std::size_t unit) {
  const std::size_t count = units_[unit]->num_trainable();
  if (count == 0) return;
  // A unit may complete twice in one backward.
  if (progress_[unit].is_complete) wait_for_all();
  progress_[unit].is_taken.resize(count);
  for (std::size_t i = 0; i < count; ++i) {
    if (is_sent_alone(unit, i) && !progress_[unit].is_taken[i]) take(unit, i);
  }
  flush_staged();
  const at::NoGradGuard no_grad;
  traffic(unit).start_rest(shards(unit), order_.hash());
  progress_[unit].is_complete = true;
  note({unit, GradientMessage::kRest});
}

bool GradientReducer::pass_by(std::size_t unit) {
  // Elsewhere it would only take memory for zeros early.
  if (!traffic(unit).has_one_order()) return false;
  complete(unit);
  return true;
}

void GradientReducer::make_room(std::size_t unit) {
  std::erase_if(in_flight_, [&](const GradientMessage& message) {
    if (!order_.may_wait_for(message, unit)) return false;
    wait_for(message);
    return true;
  });
}

void GradientReducer::wait_for(const GradientMessage& message) {
  const at::NoGradGuard no_grad;
  if (message.place == GradientMessage::kRest) {
    ShardTraffic& own = traffic(message.unit);
    const bool are_alike = own.finish_rest(shards(message.unit));
    if (&own == &comparing_) all_alike_ = all_alike_ && are_alike;
    progress_[message.unit] = Progress();
    if (!own.has_one_order()) on_reduced_(message.unit);
  } else {
    traffic(message.unit).finish_reduce(shards(message.unit), message.place);
  }
}

void GradientReducer::wait_for_all() {
  flush_staged();
  for (const GradientMessage& message : in_flight_) wait_for(message);
  in_flight_.clear();
}

void GradientReducer::finish(bool is_usual) {
  wait_for_all();
  const at::NoGradGuard no_grad;
  for (ShardTraffic* const each : traffics()) each->end_backward();
  for (std::size_t unit = units_.size(); unit-- > 0;) {
    if (traffic(unit).has_one_order()) on_reduced_(unit);
  }
  order_.end(all_alike_ && is_usual);
}

void GradientReducer::abandon() {
  in_flight_.clear();
  taken_.reset();
  progress_.assign(units_.size(), Progress());
}

}  // namespace accelerate::detail
