#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include <accelerate/detail/handles.h>
#include <accelerate/export.h>
#include <accelerate/grad_scaler.h>

namespace accelerate {

namespace detail {
struct Session;
}  // namespace detail

/// The innermost prepared loader that a loop is reading.
struct ActiveDataLoader {
  /// Its index in the order in which loaders were prepared, from 0.
  std::int64_t index = 0;
  /// Number of batches that the pass has handed out to this rank.
  std::int64_t num_batches = 0;
  /// Whether the current batch is the last.
  bool end_of_dataloader = false;
  /// See GradientState::remainder().
  std::int64_t remainder = -1;
};

/// An Accelerator's position in its window and in its loaders, and the loss
/// scaler. Cheap; always reads the current state. Made by
/// Accelerator::gradient_state().
class ACCELERATE_API GradientState {
 public:
  explicit GradientState(std::shared_ptr<detail::Session> session)
      : session_(std::move(session)) {}

  /// True if this micro-step ends a window, and always outside accumulate().
  [[nodiscard]] bool sync_gradients() const;
  /// Number of micro-steps of a full window.
  [[nodiscard]] int num_steps() const;
  /// Decides, until the next accumulate(), whether optimizers and schedules
  /// step. Whether gradients are averaged is up to accumulate() and no_sync().
  void set_sync_gradients(bool sync_gradients) const;
  /// Changes the length of future windows; the next accumulate() begins one.
  /// Throws ConfigError in the middle of a window, and for values below 1.
  void set_num_steps(int num_steps) const;
  /// Whether a loader's last batch ends the window.
  [[nodiscard]] bool sync_with_dataloader() const;

  /// Whether a pass over a prepared loader is in progress.
  [[nodiscard]] bool in_dataloader() const;
  /// Whether the active loader's current batch is its last; false outside
  /// loaders.
  [[nodiscard]] bool end_of_dataloader() const;
  /// Number of samples of the last round, over all ranks, that are not
  /// repetitions, if the loader filled it up; 0 if it repeated none. -1 before
  /// the last batch and outside loaders.
  [[nodiscard]] std::int64_t remainder() const;
  /// The active loader; std::nullopt outside loaders.
  [[nodiscard]] std::optional<ActiveDataLoader> active_dataloader() const;
  /// Empty without fp16.
  [[nodiscard]] const std::optional<GradScaler>& scaler() const;

 private:
  detail::KeptPtr<detail::Session> session_;
};

}  // namespace accelerate
