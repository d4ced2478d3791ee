#pragma once

#include <functional>
#include <memory>

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>

namespace accelerate::detail {

/// Kernels that a device recorded instead of running them, to be launched
/// together any number of times.
class DeviceGraph {
 public:
  DeviceGraph() = default;
  virtual ~DeviceGraph() = default;
  DeviceGraph(const DeviceGraph&) = delete;
  DeviceGraph& operator=(const DeviceGraph&) = delete;

  /// Begins to record what is queued on the current stream, which is not the
  /// default one. Memory comes from this pool; {0, 0}: from a new one. Numbers
  /// drawn from the device's default generator differ in each replay.
  virtual void begin(c10::MempoolId_t pool) = 0;
  /// Ends recording. Throws if something cannot be replayed.
  virtual void end() = 0;
  /// Queues the kernels on the current stream.
  virtual void replay() = 0;
  /// Discards what was or is being recorded. Does not throw.
  virtual void reset() noexcept = 0;
  [[nodiscard]] virtual c10::MempoolId_t pool() = 0;
};

using MakeGraph = std::function<std::unique_ptr<DeviceGraph>()>;

/// Makes graphs of this device with LibTorch's own classes: by
/// at::accelerator::Graph, where LibTorch has it for the device, otherwise by
/// the at::cuda::CUDAGraph of a CUDA library that is loaded. Empty if there is
/// neither.
[[nodiscard]] MakeGraph graphs_of(c10::Device device);

}  // namespace accelerate::detail
