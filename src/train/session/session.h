#pragma once

#include <cstdint>
#include <string_view>
#include <utility>

#include <accelerate/accelerator.h>
#include <accelerate/detail/step_state.h>
#include <accelerate/precision.h>
#include <accelerate/world.h>

#include "train/session/layout.h"
#include "train/session/prepared.h"
#include "train/session/services.h"
#include "train/session/step_clock.h"
#include "train/session/window.h"

namespace accelerate::detail {

/// How forwards, windows and steps run, as the code says.
struct StepOptions {
  Precision precision = Precision::no;
  AutocastOptions autocast;
  GradientAccumulationOptions accumulation;
  SchedulerOptions scheduling;
  /// AcceleratorOptions::fused_linear.
  bool fused_linear = true;
  /// AcceleratorOptions::keep_casts.
  bool keep_casts = true;
  /// AcceleratorOptions::fused_optimizers.
  bool fused_optimizers = true;
};

/// State that all handles share. The order of members matters: they are
/// destroyed in reverse order, strategies before groups. The first members are
/// what each call in a step reads; they share a cache line, which LibTorch's
/// kernels evict between calls.
struct alignas(64) Session {
  StepState step = {};
  StepClock clock;
  LoaderState loading = {};
  World world;
  SessionLayout layout;
  StepOptions options;
  Scaling scaling = {};
  StepWindow window = {};
  PreparedItems prepared = {};
  Join join = {};
  Capturing capture = {};
  Services services = {};

  [[nodiscard]] LoaderProgress* active_loader() const {
    return loading.active.empty() ? nullptr : loading.active.back();
  }
};

/// The session of an Accelerator, and an Accelerator of a session.
struct AcceleratorAccess {
  static Session& session(const Accelerator& accelerator) {
    return *accelerator.session_;
  }
  static Accelerator make(std::shared_ptr<Session> session) {
    StepState* const step = &session->step;
    return Accelerator(std::move(session), step);
  }
};

// Functions that one sub-directory provides to another, so that neither
// includes the other.

/// Whether a backward has left gradients that no step has used yet.
[[nodiscard]] bool is_accumulating(const PreparedOptimizer& optimizer);
/// Counts a backward that left gradients.
void count_backward(Session& session);
/// Does after the optimizer's step what is left to do on the host.
void finish_step(PreparedOptimizer& optimizer);
/// Finds out whether a deferred step was skipped, and finishes or undoes it.
void settle_step(PreparedOptimizer& optimizer);
/// Settles the steps of all optimizers.
void settle_steps(const Session& session);
/// Marks the optimizer's gradients as used or dropped; returns whether there
/// were any.
bool use_gradients(PreparedOptimizer& optimizer);

/// Steps the user's optimizer itself, whether or not a step is due. `divisor`
/// is that of a FusedStep.
at::Tensor step_inner(
    const PreparedOptimizer& prepared,
    const LossClosure& closure,
    const at::Tensor& divisor = {});

/// Steps the schedule itself, whether or not a step is due.
void take_step(PreparedScheduler& prepared, const SchedulerStep& step);

/// Frees the casts of all models.
void drop_kept_casts(Session& session);

/// Notices what the program has changed since prepare(). Strategies bind
/// parameters that optimizers have gained, and the tables of models that need
/// no strategy follow the modules. Throws ConfigError that names what cannot be
/// adapted to.
void notice_changes(Session& session);
/// Warns once, on the main process, about every setting from code, flags,
/// variables or a file that neither took effect nor was rejected, with its
/// origin. Must be called once everything that reads settings has had the
/// chance to: when a step begins, in end_training(), and when the last handle
/// of a program that did neither is destroyed. Later calls only report what was
/// noted in between.
void report_settings_without_effect(Session& session);

/// Whether this process has been told to end, which check_preemption() asks all
/// ranks. Does not communicate.
[[nodiscard]] bool is_told_to_end(Session& session);

/// Throws ConfigError inside join_uneven_inputs. `what` names the operation
/// that needs all ranks.
void require_no_join(const Session& session, std::string_view what);

inline bool is_accumulating(const PreparedOptimizer& optimizer) {
  return optimizer.num_backwards_used != optimizer.session->step.num_backwards;
}

inline void count_backward(Session& session) {
  ++session.step.num_backwards;
  session.window.progress.backward_serial = session.clock.serial();
}

inline bool use_gradients(PreparedOptimizer& optimizer) {
  const std::int64_t now = optimizer.session->step.num_backwards;
  return std::exchange(optimizer.num_backwards_used, now) != now;
}

}  // namespace accelerate::detail
