#pragma once

#include <cstdint>
#include <string>

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>
#include <c10/core/Stream.h>

namespace c10 {
class OperatorHandle;
}

/// Two simulated accelerators: their memory is the host's, and work queued on a
/// stream runs only when something waits for it, as late as on a real device.
/// Operators refuse tensors of several devices, as CUDA does.
namespace accelerate::testing {

/// Registers the devices with LibTorch, once per process; they remain the
/// process's accelerator. `index` is 0 or 1.
at::Device pretend_device(int index = 0);
/// What LibTorch calls them: a vendor's name that the environment gives, else
/// "pretend".
std::string pretend_device_name();

struct PretendCounts {
  /// Copies that were queued on a stream other than the default one.
  std::int64_t side_copies = 0;
  /// Side copies from or to pinned memory.
  std::int64_t pinned_copies = 0;
  /// Times that a stream waited for an event.
  std::int64_t waits = 0;
  /// Calls that recorded the use of memory on another stream.
  std::int64_t recorded = 0;
  /// pretend_host_waits() of all threads.
  std::int64_t host_waits = 0;
};
PretendCounts pretend_counts();
/// Copies from or to pinned memory that were queued on this stream.
std::int64_t pretend_pinned_copies(const c10::Stream& stream);

/// The largest number of bytes allocated on a device since the last call.
/// Memory counts until it is given back, even if streams still use it.
std::int64_t take_peak_of_pretend_memory(int device);

/// Times that this thread, as the host, has waited for a device where it would for
/// CUDA: reads of values, operators whose results have sizes that depend on
/// values, copies from and to the host that are not queued, events and streams.
std::int64_t pretend_host_waits();

/// How fast the devices are, in real time: operations sleep until they would be
/// done. 0 means as fast as the host.
struct PretendSpeeds {
  /// Speed of queued copies, which run one after another.
  double link_bytes_per_second = 0;
  /// Speed of matrix products.
  double flops_per_second = 0;
};
void set_pretend_speeds(const PretendSpeeds& speeds);

/// Gets the work of the devices instead of their streams.
class PretendCapture {
 public:
  virtual ~PretendCapture() = default;
  /// Must leave the operator's results on the stack.
  virtual void run(const c10::OperatorHandle& op, torch::jit::Stack* stack) = 0;
  virtual void copy(const at::Tensor& from, const at::Tensor& to) = 0;
};
/// Null ends it. While it is set, copies from and to the host and reads of
/// values throw, as in a stream that CUDA captures.
void set_pretend_capture(PretendCapture* capture);
/// Computes an operator at once, for captures.
void run_on_pretend_device(
    const c10::OperatorHandle& op,
    torch::jit::Stack* stack);

}  // namespace accelerate::testing
