#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "parallel/shard/shard.h"
#include "parallel/shard/shard_unit.h"
#include "parallel/shard/unshard/execution_order.h"

namespace accelerate::detail {

/// Decides which of its units are unsharded: the one that computes, and the
/// next ones if the pass follows the order of the last pass. All ranks that
/// share the units use them in the same order, so they gather in the same
/// order.
class UnshardSchedule {
 public:
  enum class Pass { forward, evaluation, backward };

  /// Both arguments must outlive the object.
  UnshardSchedule(
      const std::vector<std::unique_ptr<ShardUnit>>& units,
      const ShardOptions& options)
      : units_(units), options_(options) {}

  /// Adds a unit by number, its place in `units`.
  void add(std::size_t unit) { own_.push_back(unit); }

  void begin(Pass pass);
  void end() { order().end(); }

  /// Called before a parameter of `unit` is read.
  void before_read(std::size_t unit, bool is_filled);
  /// Starts gathering the units after `unit`, if the order is known.
  void prefetch(std::size_t unit);
  /// Whether `unit` is used again soon enough to stay unsharded.
  [[nodiscard]] bool is_due_soon(std::size_t unit) const;

  /// Reshards units, except those that stay full for the backward.
  void reshard_after_forward(bool is_held_open);
  void reshard_all();
  /// Called when no unit computes anymore.
  void forget() { current_.reset(); }

 private:
  void read_ahead(std::size_t unit);
  [[nodiscard]] ExecutionOrder& order() {
    return orders_[static_cast<std::size_t>(pass_)];
  }

  const std::vector<std::unique_ptr<ShardUnit>>& units_;
  std::vector<std::size_t> own_;
  const ShardOptions& options_;
  ExecutionOrder orders_[3];  // by Pass
  Pass pass_ = Pass::forward;
  /// The unit that computes.
  std::optional<std::size_t> current_;
};

}  // namespace accelerate::detail
