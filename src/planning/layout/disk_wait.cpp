#include "planning/layout/disk_wait.h"

#include <algorithm>

#include "planning/training_memory.h"

namespace accelerate::detail {

double disk_wait(
    const LayoutCase& of,
    double parameters,
    double backwards,
    double optimizer) {
  const TrainingLayout& layout = of.layout;
  if (!layout.on_disk) return 0;
  constexpr double kFloatBytes = 4;
  const int sharing = std::min(layout.num_ranks(), of.cluster().ranks_per_node);
  // For all files of a node, per byte of each parameter of this rank.
  const double seconds_per_byte =
      parameters / layout.shard * sharing / of.cluster().disk_bytes_per_second;
  const auto micro_steps = static_cast<double>(layout.num_micro_batches);
  // Read for a forward and a backward; the gradient is written once, and then
  // read and written by each further micro-step.
  const double of_backwards = 2 * of.element_bytes() * micro_steps +
      kFloatBytes * (2 * micro_steps - 1);
  const bool has_copies = of.element_bytes() < kFloatBytes;
  const auto state =
      static_cast<double>(optimizer_state_bytes(of.options.optimizer));
  const double of_step = 2 * (kFloatBytes + state) + kFloatBytes +
      (has_copies ? of.element_bytes() : 0);
  return std::max(of_backwards * seconds_per_byte - backwards, 0.0) +
      std::max(of_step * seconds_per_byte - optimizer, 0.0);
}

}  // namespace accelerate::detail
