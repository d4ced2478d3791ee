#pragma once

#include <exception>
#include <optional>

#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace accelerate::detail {

/// While alive, this thread queues its work on `stream`, after the work that
/// the current stream has; work queued on that later waits for it. Does nothing
/// without a stream.
class SideStreamScope {
 public:
  explicit SideStreamScope(const std::optional<c10::Stream>& stream)
      : stream_(stream) {
    if (!stream_) return;
    const c10::impl::VirtualGuardImpl guard(stream_->device_type());
    before_ = guard.getStream(stream_->device());
    let_wait(*stream_, *before_);
    guard.exchangeStream(*stream_);
  }
  ~SideStreamScope() {
    if (!stream_) return;
    try {
      const c10::impl::VirtualGuardImpl guard(stream_->device_type());
      guard.exchangeStream(*before_);
      let_wait(*before_, *stream_);
    } catch (const std::exception&) {
      // The next operator reports that the device has failed.
    }
  }
  SideStreamScope(const SideStreamScope&) = delete;
  SideStreamScope& operator=(const SideStreamScope&) = delete;

 private:
  static void let_wait(
      const c10::Stream& waiting,
      const c10::Stream& for_this) {
    c10::Event event(for_this.device_type());
    event.record(for_this);
    event.block(waiting);
  }

  std::optional<c10::Stream> stream_;
  std::optional<c10::Stream> before_;
};

}  // namespace accelerate::detail
