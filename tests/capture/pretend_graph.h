#pragma once

#include <memory>

#include "train/capture/device_graph.h"

namespace accelerate::testing {

/// What graphs of the pretend device were told.
struct PretendGraphCounts {
  int begun = 0;
  int ended = 0;
  int replayed = 0;
  /// Graphs that were given up while they were recorded.
  int abandoned = 0;
  /// Graphs that exist.
  int alive = 0;
  /// Operators that the last graph recorded.
  int operators = 0;
};

/// Makes graphs of the pretend device: what is recorded changes nothing that
/// existed before, and is computed in each replay, in the same memory. The
/// random generator is used by replays only.
detail::MakeGraph pretend_graphs(std::shared_ptr<PretendGraphCounts> counts);

}  // namespace accelerate::testing
