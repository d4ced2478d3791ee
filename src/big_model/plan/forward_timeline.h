#pragma once

#include <optional>
#include <string>
#include <vector>

#include <accelerate/block_plan.h>

namespace accelerate::detail {

/// A part of a model that is moved to a device as a unit.
struct PlanBlock {
  std::string name;
  /// Bytes in memory if it is resident. A tied tensor counts in the first of
  /// its blocks.
  double num_bytes = 0;
  /// Bytes to fetch if it is not resident.
  double num_bytes_fetched = 0;
  /// Seconds of compute.
  double seconds = 0;
  /// Number of its group of tied blocks, which share one place; -1 if it is not
  /// tied.
  int tie = -1;
};

/// A block's place: resident on the computing device with this index, or
/// fetched.
using BlockPlace = int;
inline constexpr BlockPlace kFromHost = -1;
inline constexpr BlockPlace kFromDisk = -2;

/// The memory that blocks may take.
struct PlanLimits {
  /// Bytes on each computing device.
  std::vector<double> devices;
  /// Bytes of host memory from which blocks are fetched; unset if the CPU
  /// computes, or if host memory may not be used.
  std::optional<double> host = std::nullopt;
  bool has_accelerator = false;
};

/// Times at which work is done, in seconds from the start of a forward. Blocks
/// are fetched in order into two buffers on the first device, each while the
/// previous one computes.
struct ForwardTimeline {
  double compute = 0;       ///< the last block's end
  double disk = 0;          ///< end of the last read
  double link = 0;          ///< end of the last copy to the device
  double free_buffer = 0;   ///< when the next block may be fetched
  double other_buffer = 0;  ///< when the one after that may be
  int device = 0;           ///< where the activations are

  /// Appends a block. Returns the seconds for which it waits for its weights.
  double add(
      const PlanBlock& block,
      BlockPlace place,
      const MachineSpeeds& speeds,
      bool has_accelerator);
};

/// Bytes of the largest fetched block; 0 if all are resident.
double largest_fetched(
    const std::vector<PlanBlock>& blocks,
    const std::vector<BlockPlace>& places);

/// Whether the places keep the limits. Two buffers of the largest fetched
/// block's size are kept free on the first device, and in host memory if blocks
/// go through it. Devices are filled in order, and tied blocks share one place.
bool keeps_limits(
    const std::vector<PlanBlock>& blocks,
    const std::vector<BlockPlace>& places,
    const PlanLimits& limits);

/// Seconds of a forward with these places.
double forward_seconds(
    const std::vector<PlanBlock>& blocks,
    const std::vector<BlockPlace>& places,
    const MachineSpeeds& speeds,
    bool has_accelerator);

}  // namespace accelerate::detail
