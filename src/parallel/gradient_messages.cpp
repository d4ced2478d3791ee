#include "parallel/gradient_messages.h"

#include <utility>

#include "parallel/unit_reduction.h"

namespace accelerate::detail {

namespace {

std::vector<bool> silent_among(
    const std::vector<std::unique_ptr<ShardUnit>>& units) {
  std::vector<bool> is_silent;
  for (const auto& unit : units)
    is_silent.push_back(unit->num_trainable() == 0);
  return is_silent;
}

}  // namespace

GradientMessages::GradientMessages(
    const std::vector<std::unique_ptr<ShardUnit>>& units,
    bool waits_for_copies)
    : units_(units),
      waits_for_copies_(waits_for_copies),
      order_(silent_among(units)) {}

void GradientMessages::begin() {
  order_.begin();
  all_alike_ = true;
}

void GradientMessages::send(std::size_t unit, std::size_t place) {
  if (!units_[unit]->reduction().is_large(place)) return;
  make_room(unit);
  take(unit, place);
}

void GradientMessages::take(std::size_t unit, std::size_t place) {
  send_taken();
  units_[unit]->reduction().take(place);
  taken_ = GradientMessage{unit, place};
  if (!waits_for_copies_) send_taken();
}

void GradientMessages::send_taken() {
  if (!taken_) return;
  const GradientMessage message = *std::exchange(taken_, std::nullopt);
  units_[message.unit]->reduction().send(message.part);
  note(message);
}

void GradientMessages::note(const GradientMessage& message) {
  order_.send(message);
  in_flight_.push_back(message);
}

void GradientMessages::complete(std::size_t unit) {
  if (units_[unit]->num_trainable() == 0) return;
  UnitReduction& reduction = units_[unit]->reduction();
  // A second time in one backward.
  if (reduction.is_complete()) wait_for_all();
  for (std::size_t i = 0; i < units_[unit]->num_trainable(); ++i) {
    if (reduction.is_large(i) && !reduction.is_taken(i)) take(unit, i);
  }
  send_taken();
  reduction.send_rest(order_.hash());
  note({unit, GradientMessage::kRest});
}

void GradientMessages::make_room(std::size_t unit) {
  std::erase_if(in_flight_, [&](const GradientMessage& message) {
    if (!order_.may_wait_for(message, unit)) return false;
    wait_for(message);
    return true;
  });
}

void GradientMessages::wait_for(const GradientMessage& message) {
  UnitReduction& reduction = units_[message.unit]->reduction();
  if (message.part == GradientMessage::kRest) {
    all_alike_ = reduction.finish_rest() && all_alike_;
  } else {
    reduction.finish(message.part);
  }
}

void GradientMessages::wait_for_all() {
  send_taken();
  for (const GradientMessage& message : in_flight_) wait_for(message);
  in_flight_.clear();
}

void GradientMessages::finish(bool is_usual) {
  wait_for_all();
  order_.end(all_alike_ && is_usual);
}

void GradientMessages::abandon() {
  in_flight_.clear();
  taken_.reset();
}

}  // namespace accelerate::detail
