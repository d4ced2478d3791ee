#pragma once

#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "parallel/shard/copy_event.h"

namespace accelerate::detail {

/// A stream of its own for copies between a device and host memory, so that the
/// device computes meanwhile.
class CopyStream {
 public:
  explicit CopyStream(c10::Device device)
      : stream_(c10::impl::VirtualGuardImpl(device.type())
                    .getStreamFromGlobalPool(device, /*isHighPriority=*/true)) {
  }

  /// Makes the stream the current one; it waits for what is queued on the one
  /// before, in whose order memory is taken and given back.
  class Scope {
   public:
    explicit Scope(const CopyStream& copies)
        : begin_(event_after_copies(copies.stream_.device())),
          current_(copies.stream_) {
      begin_.block(copies.stream_);
    }

   private:
    c10::Event begin_;
    c10::StreamGuard current_;
  };

 private:
  c10::Stream stream_;
};

}  // namespace accelerate::detail
