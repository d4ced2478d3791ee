#pragma once

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>

#include <linux/perf_event.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace accelerate::benchmarks {

/// Counts the instructions that the calling thread executes outside the kernel
/// (perf_event_open(2)). Machine noise does not change them.
class Instructions {
 public:
  Instructions() {
    perf_event_attr attributes{};
    attributes.size = sizeof attributes;
    attributes.type = PERF_TYPE_HARDWARE;
    attributes.config = PERF_COUNT_HW_INSTRUCTIONS;
    attributes.exclude_kernel = 1;
    attributes.exclude_hv = 1;
    counter_ = static_cast<int>(::syscall(
        SYS_perf_event_open,
        &attributes,
        /*pid=*/0,
        /*cpu=*/-1,
        /*group_fd=*/-1,
        PERF_FLAG_FD_CLOEXEC));
    if (counter_ < 0) complaint_ = std::strerror(errno);
  }
  Instructions(const Instructions&) = delete;
  Instructions& operator=(const Instructions&) = delete;
  ~Instructions() {
    if (counter_ >= 0) ::close(counter_);
  }

  /// Why this machine cannot count; empty if it can.
  [[nodiscard]] const std::string& complaint() const { return complaint_; }

  /// Instructions since construction, or nothing if they cannot be counted.
  [[nodiscard]] std::optional<double> count() const {
    std::uint64_t value = 0;
    if (counter_ < 0 || ::read(counter_, &value, sizeof value) != sizeof value)
      return std::nullopt;
    return static_cast<double>(value);
  }

 private:
  int counter_ = -1;
  std::string complaint_;
};

}  // namespace accelerate::benchmarks
