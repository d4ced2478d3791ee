#include "big_model/tiers/units/device_copies.h"

#include <algorithm>
#include <exception>

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace accelerate::detail {

const c10::Stream& DeviceCopies::stream_of(c10::Device device) {
  const auto found = std::ranges::find(
      streams_, device, &std::pair<c10::Device, c10::Stream>::first);
  if (found != streams_.end()) return found->second;
  const c10::impl::VirtualGuardImpl guard(device.type());
  return streams_.emplace_back(device, guard.getStreamFromGlobalPool(device))
      .second;
}

at::Tensor DeviceCopies::copy(const at::Tensor& value, c10::Device device) {
  const c10::StreamGuard on_stream(stream_of(device));
  return value.to(
      value.options().device(device), /*non_blocking=*/true, /*copy=*/true);
}

std::shared_ptr<c10::Event> DeviceCopies::arrival(c10::Device device) {
  auto event = std::make_shared<c10::Event>(device.type());
  event->record(stream_of(device));
  return event;
}

void LeavingMemory::add(c10::Device device, std::uint64_t num_bytes) noexcept {
  try {
    const c10::impl::VirtualGuardImpl guard(device.type());
    auto end = std::make_shared<c10::Event>(device.type());
    end->record(guard.getStream(device));
    parts_.push_back({std::move(end), num_bytes});
    bytes_ += num_bytes;
  } catch (const std::exception&) {
    // The next operator reports that the device has failed.
  }
}

void LeavingMemory::forget_what_left() {
  std::erase_if(parts_, [&](const Part& part) {
    if (!part.end->query()) return false;
    bytes_ -= part.num_bytes;
    return true;
  });
}

std::shared_ptr<c10::Event> LeavingMemory::oldest() const {
  return parts_.empty() ? nullptr : parts_.front().end;
}

}  // namespace accelerate::detail
