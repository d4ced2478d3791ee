#include "big_model/tiers/keeper/unit_memory.h"

#include <algorithm>
#include <memory>

#include <c10/core/Event.h>

namespace accelerate::detail {

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

}  // namespace accelerate::detail
