#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "parallel/shard/execution_order.h"
#include "parallel/shard/shard.h"
#include "parallel/shard/shard_unit.h"

namespace accelerate::detail {

/// Which units are full: the one that computes, and those that come next if the
/// pass keeps to the order of the one before.
class UnshardSchedule {
 public:
  enum class Pass { forward, evaluation, backward };

  /// `units` must outlive it, and may still grow.
  UnshardSchedule(
      const std::vector<std::unique_ptr<ShardUnit>>& units,
      const ShardOptions& options)
      : units_(units), options_(options) {}

  void begin(Pass pass);
  void end() { order().end(); }

  /// A parameter of `unit` is about to be read.
  void before_read(std::size_t unit, bool is_filled);
  /// Gathers what comes after `unit`, if that is known.
  void prefetch(std::size_t unit);
  /// Whether `unit` comes again so soon that it stays full.
  [[nodiscard]] bool is_due_soon(std::size_t unit) const;

  /// After a forward: all but what its backward reads first.
  void release_after_forward(bool is_held_open);
  void release_all();
  /// No unit computes any more.
  void forget() { current_.reset(); }

 private:
  [[nodiscard]] ExecutionOrder& order() {
    return orders_[static_cast<std::size_t>(pass_)];
  }

  const std::vector<std::unique_ptr<ShardUnit>>& units_;
  const ShardOptions& options_;
  ExecutionOrder orders_[3];  // by Pass
  Pass pass_ = Pass::forward;
  /// The unit that computes.
  std::optional<std::size_t> current_;
};

}  // namespace accelerate::detail
