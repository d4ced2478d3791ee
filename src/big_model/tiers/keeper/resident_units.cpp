#include "big_model/tiers/keeper/resident_units.h"

#include <algorithm>
#include <memory>
#include <utility>

#include <c10/core/Event.h>

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

void UnitMemory::add(std::uint64_t num_bytes) {
  bytes_ += num_bytes;
  peak_bytes_ = std::max(peak_bytes_, bytes_);
}

void UnitMemory::release(std::uint64_t num_bytes, c10::Device device) {
  bytes_ -= num_bytes;
  if (!device.is_cpu()) leaving_.add(device, num_bytes);
  // Buffers are a little larger than the tensors in them.
  const std::uint64_t left = limit_ > bytes_ ? limit_ - bytes_ : 0;
  buffers_.trim(left + left / 16);
  pinned_buffers_.trim(left + left / 16);
}

void UnitMemory::wait_for_released(std::unique_lock<std::mutex>& lock) {
  leaving_.forget_what_left();
  while (bytes_ + leaving_.bytes() > limit_) {
    const std::shared_ptr<c10::Event> end = leaving_.oldest();
    if (end == nullptr) break;
    lock.unlock();
    end->synchronize();
    lock.lock();
    leaving_.forget_what_left();
  }
  peak_bytes_ = std::max(peak_bytes_, bytes_ + leaving_.bytes());
}

void UnitMemory::clear_buffers() {
  buffers_.clear();
  pinned_buffers_.clear();
}

bool UnitPins::pin(std::size_t unit) {
  std::vector<std::size_t>& pins = pinned_[std::this_thread::get_id()];
  if (std::ranges::find(pins, unit) != pins.end()) return false;
  pins.push_back(unit);
  ++num_pins_[unit];
  return true;
}

void UnitPins::unpin(std::size_t unit) {
  const auto found = pinned_.find(std::this_thread::get_id());
  if (found == pinned_.end()) return;
  std::vector<std::size_t>& pins = found->second;
  const auto place = std::ranges::find(pins, unit);
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
      std::ranges::find(found->second, unit) != found->second.end();
  return num_pins_[unit] > (is_own ? 1 : 0);
}

}  // namespace accelerate::detail
