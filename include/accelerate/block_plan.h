#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <accelerate/device_map.h>
#include <accelerate/export.h>

/// Placement of a model's blocks by the predicted time of a forward.
namespace accelerate {

/// Speeds from which a forward is predicted: estimates of your own, or the
/// result of measure_speeds().
struct MachineSpeeds {
  /// Multiplications and additions that the computing device does per second.
  double flops_per_second = 1e12;
  /// Bytes per second that the computing device reads from its own memory. A
  /// block takes at least the time to read its weights once.
  double memory_bytes_per_second = 5e10;
  /// Bytes per second from host memory to an accelerator. Not used if the CPU
  /// computes.
  double link_bytes_per_second = 1e10;
  /// Bytes per second from disk to host memory.
  double disk_bytes_per_second = 1e9;
  /// Seconds that activations take from one accelerator to the next.
  double switch_seconds = 1e-5;
};

/// Arguments of plan_device_map().
struct PlanDeviceMapOptions {
  /// Memory of each place, as in InferAutoDeviceMapOptions.
  MaxMemory max_memory = {};
  /// Classes whose modules are one block each. Empty: each module without
  /// children is one.
  std::vector<std::string> no_split_module_classes = {};
  /// See ModuleSizesOptions.
  std::string dtype = {};
  /// Dtypes of tensors by name, where they differ; see ModuleSizesOptions.
  std::vector<std::pair<std::string, std::string>> special_dtypes = {};
  /// Speeds of this machine's memory, disk, links and devices.
  MachineSpeeds speeds = {};
  /// Tokens (rows) of a forward: each costs two operations per parameter.
  std::int64_t num_tokens = 1;
  /// Compute times of named blocks, in seconds, that replace the predicted
  /// ones.
  std::vector<std::pair<std::string, double>> block_seconds = {};
};

/// A map and the predicted times of a forward with it.
struct PlannedDeviceMap {
  /// Where each module is kept; `explain()` says why.
  DeviceMap map;
  /// Predicted seconds of one forward that begins with nothing fetched.
  double forward_seconds = 0;
  /// Predicted seconds of a forward if all blocks were resident.
  double resident_seconds = 0;
  /// The classes of PlanDeviceMapOptions::no_split_module_classes. The
  /// prediction assumes that blocks are fetched as a whole: pass these classes
  /// to the dispatcher as well.
  std::vector<std::string> preload_module_classes = {};
};

}  // namespace accelerate
