#pragma once

#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accelerate/detail/step_state.h>

#include "train/session/step_clock.h"
#include "train/session/window.h"

namespace accelerate::detail {

struct LoaderProgress;
struct PreparedOptimizer;
struct Session;

/// The parameters of the session's models and optimizers, each once.
[[nodiscard]] std::vector<at::Tensor> parameters_of(const Session& session);

/// A parameter and its gradient, which may be undefined.
using Gradients = std::vector<std::pair<at::Tensor, at::Tensor>>;
[[nodiscard]] Gradients gradients_of(const std::vector<at::Tensor>& parameters);
void set_gradients(const Gradients& gradients);

/// The earlier values of what a recorded run changes in a session on the host.
class HostState {
 public:
  HostState(Session& session, const std::vector<at::Tensor>& parameters);
  /// Undoes what was changed since.
  void restore();

 private:
  struct Steps {
    PreparedOptimizer* optimizer;
    std::int64_t num_backwards_used;
    bool step_was_skipped;
  };

  Session& session_;
  StepState step_;
  StepClock clock_;
  WindowProgress window_;
  bool scale_is_due_;
  LoaderProgress* loader_;
  int num_micro_steps_;
  std::vector<Steps> steps_;
  Gradients gradients_;
};

}  // namespace accelerate::detail
