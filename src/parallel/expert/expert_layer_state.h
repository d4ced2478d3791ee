#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accelerate/world.h>

#include "comm/autograd/all_to_all.h"

namespace accelerate::detail {

/// The ranks that compute a layer together; a group along which nothing is
/// divided is this rank alone.
struct ExpertRanks {
  /// The ranks that hold the layer's experts.
  Group experts = {};
  /// How `experts` exchange tokens, on a group that nothing else uses.
  RowRoute route = {};
  /// Ranks that have slices of each expert.
  Group split = {};
  /// Ranks with different tokens, all of which the balance loss counts.
  Group balance = {};
};

/// The state of an ExpertLayer besides its modules.
struct ExpertLayerState {
  /// The layer's name in errors and loads, such as "blocks.0.experts".
  std::string name = {};
  ExpertRanks ranks = {};
  /// The first expert of each rank along `experts`, and the end.
  std::vector<std::int64_t> begins = {};

  /// The losses of the last forward in training mode.
  at::Tensor auxiliary = {};
  at::Tensor balance_loss = {};
  at::Tensor z_loss = {};

  /// Assignments, by expert, since they were last taken: all, and those that
  /// were not dropped. Undefined before the first.
  at::Tensor load = {};

  [[nodiscard]] std::int64_t first_expert() const {
    return begins[static_cast<std::size_t>(ranks.experts.rank())];
  }
  [[nodiscard]] std::int64_t last_expert() const {
    return begins[static_cast<std::size_t>(ranks.experts.rank()) + 1];
  }
};

}  // namespace accelerate::detail
