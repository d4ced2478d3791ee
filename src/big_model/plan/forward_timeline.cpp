#include "big_model/plan/forward_timeline.h"

#include <algorithm>
#include <map>

namespace accelerate::detail {

double ForwardTimeline::add(
    const PlanBlock& block,
    BlockPlace place,
    const MachineSpeeds& speeds,
    bool has_accelerator) {
  const int target = std::max(place, 0);
  double start = compute;
  if (target != device) start += speeds.switch_seconds;
  device = target;
  const double due = start;
  if (place < 0) {
    double arrival = free_buffer;
    if (place == kFromDisk) {
      disk = std::max(disk, free_buffer) +
          block.num_bytes_fetched / speeds.disk_bytes_per_second;
      arrival = disk;
    }
    if (has_accelerator) {
      link = std::max(link, arrival) +
          block.num_bytes_fetched / speeds.link_bytes_per_second;
      arrival = link;
    }
    start = std::max(start, arrival);
    free_buffer = other_buffer;
    other_buffer = start + block.seconds;
    // Reads that end before the next fetch may begin no longer matter.
    disk = std::max(disk, free_buffer);
    link = std::max(link, free_buffer);
  }
  compute = start + block.seconds;
  return start - due;
}

double largest_fetched(
    const std::vector<PlanBlock>& blocks,
    const std::vector<BlockPlace>& places) {
  double largest = 0;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (places[i] < 0) largest = std::max(largest, blocks[i].num_bytes_fetched);
  }
  return largest;
}

bool keeps_limits(
    const std::vector<PlanBlock>& blocks,
    const std::vector<BlockPlace>& places,
    const PlanLimits& limits) {
  const double buffers = 2 * largest_fetched(blocks, places);
  std::vector<double> used(limits.devices.size(), 0.0);
  used.front() = buffers;
  double host_used = limits.has_accelerator ? buffers : 0;
  std::map<int, BlockPlace> place_of_tie;
  int current = 0;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const BlockPlace place = places[i];
    if (place == kFromHost) {
      if (!limits.host) return false;
      host_used += blocks[i].num_bytes;
    } else if (place >= 0) {
      // Tied blocks are on the first device, or fetched.
      if (blocks[i].tie >= 0 ? place != 0 : place < current) return false;
      if (blocks[i].tie < 0) current = place;
      used[static_cast<std::size_t>(place)] += blocks[i].num_bytes;
    }
    if (blocks[i].tie >= 0 &&
        place_of_tie.emplace(blocks[i].tie, place).first->second != place)
      return false;
  }
  if (limits.host && host_used > *limits.host) return false;
  for (std::size_t i = 0; i < used.size(); ++i) {
    if (used[i] > limits.devices[i]) return false;
  }
  return true;
}

double forward_seconds(
    const std::vector<PlanBlock>& blocks,
    const std::vector<BlockPlace>& places,
    const MachineSpeeds& speeds,
    bool has_accelerator) {
  ForwardTimeline timeline;
  for (std::size_t i = 0; i < blocks.size(); ++i)
    timeline.add(blocks[i], places[i], speeds, has_accelerator);
  return timeline.compute;
}

}  // namespace accelerate::detail
