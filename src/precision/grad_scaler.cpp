#include <accelerate/grad_scaler.h>

#include <map>
#include <utility>
#include <vector>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <torch/optim/optimizer.h>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "gate/memory_parts.h"

namespace accelerate {

namespace {

using detail::format;

struct DeviceOrder {
  bool operator()(const auto& a, const auto& b) const {
    const auto key = [](const auto& x) {
      return std::tuple(
          static_cast<int>(x.first.type()),
          static_cast<int>(x.first.index()),
          static_cast<int>(x.second));
    };
    return key(a) < key(b);
  }
};
using GradientLists = std::map<
    std::pair<c10::Device, at::ScalarType>,
    std::vector<at::Tensor>,
    DeviceOrder>;

// Complex gradients become pairs of real numbers. If a conjugation or a sign is
// still pending, multiplying the memory is equally correct.
GradientLists gradients_of(const torch::optim::Optimizer& optimizer) {
  GradientLists lists;
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      at::Tensor gradient = parameter.grad();
      if (!gradient.defined()) continue;
      if (gradient.is_sparse()) gradient = gradient._values();
      if (gradient.is_conj()) gradient = gradient.conj();
      if (gradient.is_neg()) gradient = at::_neg_view(gradient);
      if (gradient.is_complex()) gradient = at::view_as_real(gradient);
      lists[{gradient.device(), gradient.scalar_type()}].push_back(gradient);
    }
  }
  return lists;
}

// Multiplies gradients of one dtype and device by `factor`, a double, and sets
// `found` to 1 if any is not finite.
void unscale_list(
    const std::vector<at::Tensor>& list,
    const at::Tensor& factor,
    at::Tensor found) {
  if (list[0].scalar_type() != at::kDouble) {
    for (const auto& part : detail::memory_parts(list)) {
      at::_amp_foreach_non_finite_check_and_unscale_(
          part, found, factor.to(at::kFloat));
    }
    return;
  }
  // The kernel's factor is a float, which rounds unless it is a power of two.
  for (const at::Tensor& gradient : list) {
    found.logical_or_(at::isfinite(gradient).all().logical_not());
    gradient.mul_(factor.squeeze(0));
  }
}

void require_valid(const GradScalerOptions& options) {
  std::vector<std::string> complaints;
  const auto complain =
      [&](bool is_wrong, const char* name, auto value, const char* rule) {
        if (is_wrong) {
          complaints.push_back(format(
              "[precision] the scaler's {} must be {}, but is {}",
              name,
              rule,
              value));
        }
      };
  complain(
      !(options.init_scale > 0), "init_scale", options.init_scale, "above 0");
  complain(
      !(options.growth_factor > 1),
      "growth_factor",
      options.growth_factor,
      "above 1");
  complain(
      !(options.backoff_factor > 0 && options.backoff_factor < 1),
      "backoff_factor",
      options.backoff_factor,
      "between 0 and 1");
  complain(
      options.growth_interval < 1,
      "growth_interval",
      options.growth_interval,
      "at least 1");
  if (!complaints.empty()) throw ConfigError(detail::join(complaints, "\n"));
}

}  // namespace

struct GradScaler::State {
  GradScalerOptions options;
  c10::Device device;
  std::optional<Group> group;
  at::Tensor scale;           // float [1]
  at::Tensor growth_tracker;  // int32 [1]
  // Whether unscale_ has found infinities since the last update: float [1], 0
  // or 1.
  std::map<const torch::optim::Optimizer*, at::Tensor> found = {};
};

GradScaler::GradScaler(
    const GradScalerOptions& options,
    c10::Device device,
    std::optional<Group> group)
    : state_(std::make_shared<State>(
          State{options, device, std::move(group), {}, {}})) {
  require_valid(options);
  const auto on_device = at::TensorOptions().device(device);
  state_->scale =
      at::full({1}, options.init_scale, on_device.dtype(at::kFloat));
  state_->growth_tracker = at::zeros({1}, on_device.dtype(at::kInt));
}

at::Tensor GradScaler::scale(const at::Tensor& loss) const {
  if (!is_enabled()) return loss;
  // A 0-d factor keeps the loss's dtype.
  return loss * state_->scale.squeeze(0).to(loss.device());
}

void GradScaler::unscale_(torch::optim::Optimizer& optimizer) const {
  if (!is_enabled()) return;
  if (is_unscaled(optimizer)) {
    throw ConfigError(
        "[precision] unscale_() must be called once per optimizer and "
        "update(), but was called twice");
  }
  const at::NoGradGuard no_grad;
  const GradientLists lists = gradients_of(optimizer);
  for (const auto& [kind, list] : lists) {
    if (kind.second == at::kHalf) {
      throw ConfigError(
          "[precision] unscaling fp16 gradients would lose the small ones; "
          "keep the model in fp32 (autocast computes in fp16), or set "
          "master_weights");
    }
  }
  at::Tensor found = at::zeros({1}, state_->scale.options());
  const at::Tensor inverse = state_->scale.to(at::kDouble).reciprocal();
  for (const auto& [kind, list] : lists) {
    if (kind.first == state_->device) {
      unscale_list(list, inverse, found);
    } else {
      at::Tensor found_there =
          at::zeros({1}, found.options().device(kind.first));
      unscale_list(list, inverse.to(kind.first), found_there);
      found = at::maximum(found, found_there.to(state_->device));
    }
  }
  if (state_->group) state_->group->all_reduce(found, ReduceOp::max);
  state_->found[&optimizer] = std::move(found);
}

void GradScaler::undo_unscale_(torch::optim::Optimizer& optimizer) const {
  if (state_->found.erase(&optimizer) == 0) return;
  const at::NoGradGuard no_grad;
  for (const auto& [kind, list] : gradients_of(optimizer)) {
    for (const auto& part : detail::memory_parts(list))
      at::_foreach_mul_(part, state_->scale.squeeze(0).to(kind.first));
  }
}

bool GradScaler::is_unscaled(torch::optim::Optimizer& optimizer) const {
  return state_->found.contains(&optimizer);
}

bool GradScaler::found_inf(torch::optim::Optimizer& optimizer) const {
  const auto found = state_->found.find(&optimizer);
  return found != state_->found.end() && found->second.item<float>() != 0;
}

at::Tensor GradScaler::found_inf_tensor(
    torch::optim::Optimizer& optimizer) const {
  const auto found = state_->found.find(&optimizer);
  return found == state_->found.end() ? at::Tensor() : found->second;
}

bool GradScaler::step(
    torch::optim::Optimizer& optimizer,
    const std::function<at::Tensor()>& closure) const {
  if (is_enabled()) {
    if (closure) {
      throw ConfigError(
          "[precision] an optimizer cannot step with a closure while gradients "
          "are scaled, since the closure's gradients would not be unscaled; "
          "use bf16 or no");
    }
    if (!is_unscaled(optimizer)) unscale_(optimizer);
    if (found_inf(optimizer)) return false;
  }
  optimizer.step(closure);
  return true;
}

void GradScaler::update(std::optional<double> new_scale) const {
  if (!is_enabled()) return;
  if (new_scale) {
    if (!(*new_scale > 0)) {
      throw ConfigError(format(
          "[precision] the scale passed to update() must be above 0, but is {}",
          *new_scale));
    }
    state_->scale.fill_(*new_scale);
  } else {
    if (state_->found.empty()) {
      throw ConfigError(
          "[precision] update() was called before any gradients were checked; "
          "call step() or unscale_() first");
    }
    at::Tensor any = at::zeros({1}, state_->scale.options());
    for (const auto& [optimizer, found] : state_->found) any += found;
    at::_amp_update_scale_(
        state_->scale,
        state_->growth_tracker,
        any,
        state_->options.growth_factor,
        state_->options.backoff_factor,
        state_->options.growth_interval);
  }
  state_->found.clear();
}

double GradScaler::get_scale() const {
  return is_enabled() ? static_cast<double>(state_->scale.item<float>()) : 1.0;
}

std::int64_t GradScaler::growth_tracker() const {
  return state_->growth_tracker.item<int>();
}

bool GradScaler::is_enabled() const { return state_->options.enabled; }

const GradScalerOptions& GradScaler::options() const { return state_->options; }

StateDict GradScaler::state_dict() const {
  if (!is_enabled()) return {};
  const GradScalerOptions& options = state_->options;
  return {
      {"scale", get_scale()},
      {"growth_factor", options.growth_factor},
      {"backoff_factor", options.backoff_factor},
      {"growth_interval", options.growth_interval},
      {"_growth_tracker", growth_tracker()}};
}

void GradScaler::load_state_dict(const StateDict& state) const {
  if (!is_enabled()) return;
  if (state.empty()) {
    throw CheckpointError(
        "[precision] the state is of a disabled scaler; train with the "
        "precision it was saved with, or leave out the scaler's state");
  }
  GradScalerOptions options = state_->options;
  options.growth_factor = state.get<double>("growth_factor");
  options.backoff_factor = state.get<double>("backoff_factor");
  options.growth_interval = state.get<std::int64_t>("growth_interval");
  const auto scale = state.get<double>("scale");
  const auto tracker = state.get<std::int64_t>("_growth_tracker");
  require_valid(options);
  state_->options = options;
  state_->scale.fill_(scale);
  state_->growth_tracker.fill_(tracker);
  state_->found.clear();
}

}  // namespace accelerate
