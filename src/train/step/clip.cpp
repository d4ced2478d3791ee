#include <accelerate/accelerator.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <unordered_set>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <torch/optim/optimizer.h>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "comm/monitoring/public_call.h"
#include "gate/memory_parts.h"
#include "optim/optimizers/fused.h"
#include "params/gradient_norm.h"
#include "train/session/session.h"
#include "train/step/gradients.h"
#include "train/step/scaling.h"
#include "train/step/step_watch.h"

namespace accelerate {

namespace {

using detail::Parameter;

/// Rows of the models' tables, and unsharded rows for other tensors.
struct Rows {
  std::vector<detail::PlacedParameter> all;
  /// Rows that count in the norm: without those that another pipeline stage
  /// also has and counts.
  std::vector<detail::PlacedParameter> counted;
  std::vector<std::unique_ptr<Parameter>> own;
};

Rows rows_for(
    const detail::Session& session,
    const std::vector<at::Tensor>& parameters) {
  Rows rows;
  std::unordered_set<const void*> seen;
  for (const at::Tensor& parameter : parameters) {
    const Parameter* row = nullptr;
    const Mesh* mesh = &session.layout.mesh;
    bool is_counted = true;
    for (const auto& model : session.prepared.models) {
      row = model->table.find(parameter);
      if (row == nullptr) row = model->table.find_local(parameter);
      if (row == nullptr) continue;
      mesh = &model->mesh;
      is_counted = !model->stage ||
          !model->stage->others.saved_there.contains(row->name);
      break;
    }
    if (row == nullptr) {
      rows.own.push_back(std::make_unique<Parameter>(Parameter{
          "",
          parameter,
          parameter,
          detail::Layout::unsharded(parameter.sizes().vec())}));
      row = rows.own.back().get();
    }
    // A tied tensor may be passed twice but counts once.
    if (!seen.insert(row->tensor.unsafeGetTensorImpl()).second) continue;
    rows.all.push_back({row, mesh});
    if (is_counted) rows.counted.push_back({row, mesh});
  }
  return rows;
}

// The norm of the gradients of all pipeline stages, from this rank's.
at::Tensor norm_over_stages(
    const detail::Session& session,
    const at::Tensor& norm,
    double norm_type) {
  const Group& stages = session.layout.mesh.group(Axis::pipeline);
  if (stages.size() == 1) return norm;
  // A stage without parameters does not know the other stages' dtype.
  at::Tensor all = norm.to(session.world.device(), at::kDouble);
  const bool is_infinite = std::isinf(norm_type);
  if (!is_infinite) all = all.pow(norm_type);
  stages.all_reduce(all, is_infinite ? ReduceOp::max : ReduceOp::sum);
  if (!is_infinite) all = all.pow(1 / norm_type);
  return all.to(norm.device(), norm.scalar_type());
}

// Returns the memory of a gradient whose conjugation or sign is still pending,
// which makes no difference to clipping, but which kernels reject.
at::Tensor in_memory(const at::Tensor& gradient) {
  if (gradient.is_conj()) return in_memory(gradient.conj());
  return gradient.is_neg() ? at::_neg_view(gradient) : gradient;
}

// The gradient, or the numbers of a sparse one.
at::Tensor values_of(const at::Tensor& parameter) {
  at::Tensor& gradient = parameter.mutable_grad();
  if (!gradient.defined()) return {};
  if (!gradient.is_sparse()) return in_memory(gradient);
  gradient = gradient.coalesce();
  return in_memory(gradient.values());
}

// Groups gradients of equal dtype and device, which one kernel can process.
std::vector<std::vector<at::Tensor>> gradients_of(
    const std::vector<detail::PlacedParameter>& rows) {
  std::vector<std::vector<at::Tensor>> lists;
  for (const auto& placed : rows) {
    const at::Tensor gradient = values_of(placed.row->local);
    if (!gradient.defined()) continue;
    const auto list = std::ranges::find_if(lists, [&](const auto& other) {
      return other[0].scalar_type() == gradient.scalar_type() &&
          other[0].device() == gradient.device();
    });
    if (list == lists.end()) {
      lists.push_back({gradient});
    } else {
      list->push_back(gradient);
    }
  }
  return lists;
}

}  // namespace

namespace {

struct MeasuredNorm {
  Rows rows;
  at::Tensor norm;
};

// Backward may have used the gradients.
void require_gradients(const detail::Session& session) {
  for (const auto& model : session.prepared.models) {
    if (const auto& complaint = model->strategies.traits().clipping_complaint)
      throw ConfigError(*complaint);
  }
}

MeasuredNorm measure_norm(
    detail::Session& session,
    const std::vector<at::Tensor>& parameters,
    const ClipNormOptions& options) {
  require_gradients(session);
  detail::unscale_parameters(session, parameters);
  MeasuredNorm measured{rows_for(session, parameters), {}};
  measured.norm = norm_over_stages(
      session,
      detail::gradient_norm(measured.rows.counted, options.norm_type),
      options.norm_type);
  if (options.error_if_nonfinite && !at::isfinite(measured.norm).item<bool>()) {
    throw ConfigError(detail::format(
        "[train] the gradient norm must be finite, but is {}; skip this step, "
        "lower the learning rate, or unset error_if_nonfinite",
        measured.norm.item<double>()));
  }
  return measured;
}

// As in PyTorch, this small term avoids a division by zero.
constexpr double kSmall = 1e-6;

void scale_to(double max_norm, const MeasuredNorm& measured) {
  const at::Tensor factor =
      (max_norm / (measured.norm + kSmall)).clamp_max(1.0);
  std::optional<bool> is_one;
  for (const auto& list : gradients_of(measured.rows.all)) {
    const auto parts = detail::memory_parts(list);
    // Gradients that lie elsewhere are not fetched for a product with 1.
    if (parts.size() > 1 && !is_one) is_one = factor.item<double>() == 1;
    if (is_one == true) continue;
    for (const auto& part : parts)
      at::_foreach_mul_(part, factor.to(list[0].device()));
  }
}

}  // namespace

std::vector<at::Tensor> detail::parameters_of(
    const torch::optim::Optimizer& optimizer) {
  std::vector<at::Tensor> parameters;
  for (const auto& group : optimizer.param_groups()) {
    parameters.insert(
        parameters.end(), group.params().begin(), group.params().end());
  }
  return parameters;
}

at::Tensor detail::clip_gradients(
    Session& session,
    const std::vector<at::Tensor>& parameters,
    double max_norm,
    const ClipNormOptions& options) {
  const at::NoGradGuard no_grad;
  const detail::LibraryCall call;
  const MeasuredNorm measured = measure_norm(session, parameters, options);
  scale_to(max_norm, measured);
  return measured.norm;
}

detail::StepClipping detail::clip_for_step(
    const PreparedOptimizer& optimizer,
    const ClippedStepOptions& options) {
  const at::NoGradGuard no_grad;
  const detail::LibraryCall call;
  const MeasuredNorm measured = measure_norm(
      *optimizer.session,
      parameters_of(*optimizer.inner),
      {.norm_type = options.norm_type,
       .error_if_nonfinite = options.error_if_nonfinite});
  if (optimizer.fused_step == nullptr || !can_divide(*optimizer.inner)) {
    scale_to(options.max_norm, measured);
    return {measured.norm, {}};
  }
  const at::Tensor excess = (measured.norm + kSmall) / options.max_norm;
  return {measured.norm, excess.clamp_min(1.0).to(at::kFloat)};
}

at::Tensor Accelerator::clip_grad_norm_(
    const std::vector<at::Tensor>& parameters,
    double max_norm,
    const ClipNormOptions& options) const {
  const detail::PublicCall call("clip_grad_norm_()");
  return detail::clip_gradients(*session_, parameters, max_norm, options);
}

at::Tensor Accelerator::clip_grad_norm_(
    const detail::ModelReference& model,
    double max_norm,
    const ClipNormOptions& options) const {
  return clip_grad_norm_(model.module.parameters(), max_norm, options);
}

void Accelerator::clip_grad_value_(
    const detail::ModelReference& model,
    double clip_value) const {
  clip_grad_value_(model.module.parameters(), clip_value);
}

void Accelerator::clip_grad_value_(
    const std::vector<at::Tensor>& parameters,
    double clip_value) const {
  const at::NoGradGuard no_grad;
  const detail::LibraryCall call;
  require_gradients(*session_);
  detail::unscale_parameters(*session_, parameters);
  const Rows rows = rows_for(*session_, parameters);
  for (auto list : gradients_of(rows.all)) {
    if (list[0].is_complex()) {
      for (at::Tensor& gradient : list) gradient = at::view_as_real(gradient);
    }
    if (list[0].is_cpu()) {
      // One pass per gradient; on the CPU, the foreach kernels would take two.
      for (const at::Tensor& gradient : list)
        gradient.clamp_(-clip_value, clip_value);
      continue;
    }
    at::_foreach_clamp_min_(list, -clip_value);
    at::_foreach_clamp_max_(list, clip_value);
  }
}

}  // namespace accelerate
