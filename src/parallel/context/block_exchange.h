#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accelerate/attention.h>
#include <accelerate/world.h>

#include "comm/group/begun_exchange.h"

namespace accelerate::detail {

/// Brings the blocks of a group's ranks to this rank one by one, each while the
/// previous one is being computed with. In step s every rank has the block of
/// the rank s before it, received from its owner: each step is a permutation,
/// and no rank forwards what it does not need itself.
class BlockExchange {
 public:
  /// `own`: this rank's tensors, B x H x L x ..., which must not change until the
  /// end. `num_positions(reader, owner)`: how many
  /// positions, from the first, `reader` reads of the block of `owner`.
  BlockExchange(
      Group group,
      std::vector<at::Tensor> own,
      KeyValueRotation rotation,
      std::function<std::int64_t(int reader, int owner)> num_positions);

  /// The rank whose block is processed in `step`.
  [[nodiscard]] int owner_at(int step) const;

  /// Waits for the block of `step`, and begins the transfer of the next one.
  /// Called for 0, 1, ..., size - 1. Tensors have the positions that this rank
  /// reads, possibly none, and are valid until the call for step + 1.
  const std::vector<at::Tensor>& block_at(int step);

  /// Waits until the other ranks have this rank's block.
  void finish();

 private:
  struct Step {
    std::vector<at::Tensor> block;
    BegunExchange exchange;
  };

  void begin(int step);
  [[nodiscard]] int peer(int distance) const;

  Group group_;
  std::vector<at::Tensor> own_;
  /// `own_` in the form in which it is sent; empty until the first send.
  std::vector<at::Tensor> packed_;
  KeyValueRotation rotation_;
  std::function<std::int64_t(int, int)> num_positions_;
  /// From the current step, whose messages to others may be unfinished, to the
  /// last one begun.
  std::deque<Step> steps_;
  std::vector<at::Tensor> current_;
  int begun_ = 0;
};

/// Adds the other ranks' contributions to the gradients of this rank's block,
/// in the order of the steps in which they had the block.
class GradientExchange {
 public:
  /// `sums`: gradients of this rank's block, to which contributions are added.
  GradientExchange(
      Group group,
      std::vector<at::Tensor> sums,
      std::function<std::int64_t(int reader, int owner)> num_positions);

  /// Sends `gradients` of the first positions of the block of step `step` >= 1
  /// to its owner, and adds those that another rank computed in the previous
  /// step.
  void contribute(int step, std::vector<at::Tensor> gradients);
  /// Waits for the last contributions.
  void finish();

 private:
  void add_received();

  Group group_;
  std::vector<at::Tensor> sums_;
  std::function<std::int64_t(int, int)> num_positions_;
  std::vector<at::Tensor> received_;
  BegunExchange exchange_;
};

}  // namespace accelerate::detail
