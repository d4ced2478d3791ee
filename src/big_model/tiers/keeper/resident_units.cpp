#include "big_model/tiers/keeper/resident_units.h"

#include <algorithm>
#include <utility>

namespace accelerate::detail {

ResidentUnits::ResidentUnits(
    const KeptWeights& weights,
    std::uint64_t limit,
    bool is_unlimited)
    : weights_(weights),
      units_(weights.units.size()),
      memory_(limit, is_unlimited) {
  std::uint64_t largest = 0;
  for (std::size_t i = 0; i < size(); ++i) {
    units_[i].is_instant =
        std::ranges::all_of(weights.units[i].tensors, [&](std::size_t tensor) {
          return is_ready_on_host(weights.tensors[tensor]);
        });
    largest = std::max(largest, bytes_of(i));
  }
  if (limit == 0) memory_ = UnitMemory(2 * largest, is_unlimited);
}

std::vector<const OffloadedTensor*> ResidentUnits::tensors_of(
    std::size_t unit) const {
  std::vector<const OffloadedTensor*> tensors;
  for (const std::size_t tensor : weights_.units[unit].tensors)
    tensors.push_back(&weights_.tensors[tensor]);
  return tensors;
}

c10::Device ResidentUnits::device_of(std::size_t unit) const {
  return weights_.tensors[weights_.units[unit].tensors.front()].device;
}

void ResidentUnits::begin_fetch(std::size_t unit) {
  units_[unit].state = State::fetching;
  memory_.add(bytes_of(unit));
}

void ResidentUnits::abandon_fetch(std::size_t unit) {
  units_[unit].state = State::absent;
  memory_.remove(bytes_of(unit));
}

void ResidentUnits::arrive(std::size_t unit, FetchedUnit fetched) {
  units_[unit].fetched = std::move(fetched);
  units_[unit].state = State::fetched;
}

void ResidentUnits::evict(std::size_t unit) {
  Unit& own = units_[unit];
  own.state = State::absent;
  own.fetched.values.clear();
  buffers_of(unit).give_back(std::move(own.fetched.buffer));
  own.fetched = {};
  if (!own.is_instant) memory_.release(bytes_of(unit), device_of(unit));
}

}  // namespace accelerate::detail
