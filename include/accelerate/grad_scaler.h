#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <accelerate/detail/handles.h>
#include <accelerate/export.h>
#include <accelerate/state_dict.h>
#include <accelerate/world.h>

namespace torch::optim {
class Optimizer;
}

namespace accelerate {

struct GradScalerOptions {
  /// The initial factor by which losses are multiplied. If it is too large, the
  /// first steps are skipped until it fits: lower it if that is too many.
  double init_scale = 65536.0;
  /// Factors by which the scale grows after `growth_interval` steps without an
  /// infinity, and shrinks at each step with one.
  double growth_factor = 2.0;
  /// The second of these factors, below 1.
  double backoff_factor = 0.5;
  /// Number of steps without an infinity before the scale grows. When it has
  /// grown too large, a step is skipped: raise it if steps are skipped often.
  std::int64_t growth_interval = 2000;
  /// If false, every function passes its argument through, so that one loop
  /// serves with and without fp16.
  bool enabled = true;
};

/// Keeps fp16 gradients from vanishing: losses are multiplied by a scale before
/// the backward, and gradients divided by it afterwards; a step whose gradients
/// have an infinity or NaN is skipped, and the scale is lowered. Scales are
/// those of torch.amp.GradScaler.
///
/// An Accelerator with fp16 has one and calls it in backward(),
/// clip_grad_norm_() and Optimizer::step(); use one directly in your own loop:
///
///     scaler.scale(loss).backward();
///     scaler.step(adamw);
///     scaler.update();
///
/// A cheap handle: copies refer to the same scaler. Not thread-safe.
class ACCELERATE_API GradScaler {
 public:
  /// Throws a single ConfigError that lists everything wrong with the options.
  /// With a `group`, its ranks agree on infinities: if one rank found some, all
  /// skip the step; `unscale_` is then collective.
  explicit GradScaler(
      const GradScalerOptions& options = {},
      c10::Device device = c10::kCPU,
      std::optional<Group> group = std::nullopt);

  /// `loss` times the scale, on the loss's device and in its dtype.
  [[nodiscard]] at::Tensor scale(const at::Tensor& loss) const;

  /// Divides the gradients of all the optimizer's parameters by the scale and
  /// looks for infinities, without waiting for the device. Allowed once between
  /// two updates: throws ConfigError the second time, and for fp16 gradients of
  /// fp16 parameters, which would vanish.
  void unscale_(torch::optim::Optimizer& optimizer) const;
  /// Multiplies the gradients by the scale again, so that a further backward
  /// can add to them.
  void undo_unscale_(torch::optim::Optimizer& optimizer) const;
  /// Whether the gradients that `unscale_` saw since the last update had an
  /// infinity or NaN; false if it saw none. Waits for the device.
  [[nodiscard]] bool found_inf(torch::optim::Optimizer& optimizer) const;
  /// found_inf() as a float tensor [1] on the scaler's device, 0 or 1, without
  /// waiting; undefined if `unscale_` saw none. The next update() forgets it.
  [[nodiscard]] at::Tensor found_inf_tensor(
      torch::optim::Optimizer& optimizer) const;
  /// Whether `unscale_` has seen this optimizer since the last update.
  [[nodiscard]] bool is_unscaled(torch::optim::Optimizer& optimizer) const;

  /// Unscales the gradients if that is not done yet, and steps unless there was
  /// an infinity. Returns whether it stepped. Waits for the device.
  bool step(
      torch::optim::Optimizer& optimizer,
      const std::function<at::Tensor()>& closure = nullptr) const;
  /// Ends the step of all optimizers: lowers or raises the scale, or sets it.
  void update(std::optional<double> new_scale = std::nullopt) const;

  /// The scale; 1 if not enabled. Waits for the device.
  [[nodiscard]] double get_scale() const;
  /// Number of steps without an infinity since the scale last changed.
  [[nodiscard]] std::int64_t growth_tracker() const;
  /// Whether losses are scaled.
  [[nodiscard]] bool is_enabled() const;
  /// The options that it was made with.
  [[nodiscard]] const GradScalerOptions& options() const;

  /// Empty if not enabled. The keys are torch's: scale, growth_factor,
  /// backoff_factor, growth_interval, _growth_tracker.
  [[nodiscard]] StateDict state_dict() const;
  /// Throws CheckpointError, before changing anything, for a state that does
  /// not fit.
  void load_state_dict(const StateDict& state) const;

 private:
  struct State;
  detail::KeptPtr<State> state_;
};

}  // namespace accelerate
