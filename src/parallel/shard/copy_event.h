#pragma once

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace accelerate::detail {

/// An event at the end of what is queued on the current stream of `device`.
inline c10::Event event_after_copies(c10::Device device) {
  c10::Event end(device.type());
  end.record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  return end;
}

}  // namespace accelerate::detail
