#include "big_model/tiers/keeper/unit_pins.h"

#include <algorithm>

namespace accelerate::detail {

bool UnitPins::pin(std::size_t unit) {
  std::vector<std::size_t>& pins = pinned_[std::this_thread::get_id()];
  if (std::find(pins.begin(), pins.end(), unit) != pins.end()) return false;
  pins.push_back(unit);
  ++num_pins_[unit];
  return true;
}

void UnitPins::unpin(std::size_t unit) {
  const auto found = pinned_.find(std::this_thread::get_id());
  if (found == pinned_.end()) return;
  std::vector<std::size_t>& pins = found->second;
  const auto place = std::find(pins.begin(), pins.end(), unit);
  if (place == pins.end()) return;
  pins.erase(place);
  --num_pins_[unit];
  if (pins.empty()) pinned_.erase(found);
}

void UnitPins::unpin_all() {
  const auto found = pinned_.find(std::this_thread::get_id());
  if (found == pinned_.end()) return;
  for (const std::size_t unit : found->second) --num_pins_[unit];
  pinned_.erase(found);
}

bool UnitPins::is_pinned_by_others(std::size_t unit) const {
  const auto found = pinned_.find(std::this_thread::get_id());
  const bool is_own = found != pinned_.end() &&
      std::find(found->second.begin(), found->second.end(), unit) !=
          found->second.end();
  return num_pins_[unit] > (is_own ? 1 : 0);
}

}  // namespace accelerate::detail
