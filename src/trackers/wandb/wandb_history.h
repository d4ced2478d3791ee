#pragma once

#include <cstdint>
#include <optional>

#include <nlohmann/json.hpp>

#include <accelerate/tracker.h>

namespace accelerate::detail {

/// Collects what is logged into rows, one per step, as wandb.Run.log() does:
/// values of one step form one row, which is complete when a later step or a
/// call without a step follows.
class WandbHistory {
 public:
  struct Row {
    std::int64_t step = 0;
    double seconds = 0;  ///< when its last value was logged, since 1970
    /// An object, without W&B's own keys.
    nlohmann::ordered_json values = nlohmann::ordered_json::object();
  };

  /// Advances to the step, and returns the row that is thereby complete, if
  /// any.
  std::optional<Row> advance(std::optional<std::int64_t> step);
  /// Whether it is too late to log for that step.
  [[nodiscard]] bool is_past(std::optional<std::int64_t> step) const {
    return step && *step < row_.step;
  }
  /// The step of the values that are added next.
  [[nodiscard]] std::int64_t step() const { return row_.step; }

  void add(const nlohmann::ordered_json& values, double seconds);
  /// Completes the row and advances to the next step.
  std::optional<Row> commit();

 private:
  std::optional<Row> take(std::int64_t next_step);

  Row row_;
};

}  // namespace accelerate::detail
