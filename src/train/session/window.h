#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <accelerate/grad_scaler.h>
#include <accelerate/world.h>

#include "parallel/join_round.h"

namespace accelerate::detail {

struct PreparedModel;

/// Items (tokens, for example) over which a window's losses are means.
struct ItemCount {
  /// Sum of the counts given to backward() in this window.
  std::int64_t in_window = 0;
  /// Divisor of the weights of the window's losses, the same on all ranks;
  /// keeps gradients in range before the total is known.
  double unit = 1;
  std::int64_t in_micro_step = 0;
  /// The micro-step that was last counted; 0 if none.
  std::int64_t serial = 0;
};

/// State of backward() in a window, besides the clock.
struct WindowProgress {
  ItemCount items = {};
  /// The models of the current micro-step; empty for all.
  std::vector<PreparedModel*> models = {};
  /// The micro-step in which earlier gradients of a short window were scaled.
  std::int64_t aligned_serial = 0;
  /// Number of backward passes outside accumulate() since the last step.
  int num_loose_backwards = 0;
  /// The micro-step of the last backward; 0 outside accumulate().
  std::int64_t backward_serial = 0;
};

/// State that backwards leave for the next step and beyond.
struct StepWindow {
  WindowProgress progress = {};
  /// True inside Accelerator::backward() and a pipeline's step.
  bool is_in_backward = false;
  /// LibTorch's number of the last plain backward (PlainBackwards).
  int last_plain_backward = -1;
  /// Backward passes that average gradients over ranks; read by another thread.
  std::shared_ptr<std::atomic<std::int64_t>> num_averaging_passes =
      std::make_shared<std::atomic<std::int64_t>>(0);
  /// True after the warning that a plain backward divides nothing.
  bool has_warned_of_plain_backward = false;
  /// True after the warning that no accumulate() is open.
  bool has_warned_of_window = false;
  /// True after the warning that no handle steps.
  bool has_warned_of_steps = false;
};

/// State of the changes made to gradients before a step.
struct Scaling {
  /// Set only with fp16.
  std::optional<GradScaler> scaler;
  /// True if optimizers have stepped since the scale was last adjusted.
  bool is_due = false;
  /// The norm to which every step clips gradients, in addition to the program's
  /// own clipping.
  std::optional<double> max_gradient_norm = std::nullopt;
};

/// The state of join_uneven_inputs.
struct Join {
  /// True inside join_uneven_inputs, even on a single rank.
  bool is_open = false;
  /// A separate group over all ranks; created when first needed.
  std::optional<Group> group = std::nullopt;
  /// Null outside join_uneven_inputs and on a single rank.
  std::unique_ptr<JoinRound> round = nullptr;
  /// JoinOptions::even_batches, for passes over data that begin inside.
  std::optional<bool> even_batches = std::nullopt;
};

}  // namespace accelerate::detail
