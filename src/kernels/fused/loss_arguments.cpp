#include "kernels/fused/loss_arguments.h"

#include <string>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <accelerate/error.h>

#include "base/text/text.h"

namespace accelerate::detail {

namespace {

std::string complain_about_weights(
    const LossCall& call,
    const at::Tensor& weights) {
  if (!weights.defined()) return "";
  std::string complaints = complain_about_dtype("class_weights", weights);
  if (weights.sizes() != at::IntArrayRef({call.num_classes})) {
    complaints += format(
        "class_weights must have shape [{}], but is of shape {}; ",
        call.num_classes,
        weights.sizes());
  }
  if (weights.device() != call.logits.device()) {
    complaints += format(
        "class_weights must be on {}, but is on {}; ",
        call.logits.device(),
        weights.device());
  }
  return complaints;
}

std::string complain_about_targets(
    const LossCall& call,
    const at::Tensor& targets) {
  if (!targets.defined()) return "targets must be defined, but is not; ";
  std::string complaints;
  if (targets.scalar_type() != at::kLong) {
    complaints += format(
        "targets must be numbers of classes in int64, but is {}; ",
        c10::toString(targets.scalar_type()));
  }
  if (targets.sizes() != call.rows_shape) {
    complaints += format(
        "targets must have shape {}, but is of shape {}; ",
        call.rows_shape,
        targets.sizes());
  }
  if (targets.device() != call.logits.device()) {
    complaints += format(
        "targets must be on {}, but is on {}; ",
        call.logits.device(),
        targets.device());
  }
  return complaints;
}

// Checks values only where that does not wait for a device.
std::string complain_about_classes(
    const LossCall& call,
    const at::Tensor& targets,
    const at::Tensor& is_counted) {
  if (!targets.is_cpu() || targets.numel() == 0) return "";
  const at::Tensor is_wrong = is_counted.logical_and(
      targets.lt(0).logical_or_(targets.ge(call.num_classes)));
  if (!is_wrong.any().item<bool>()) return "";
  return format(
      "targets must be from 0 to {}, or ignore_index, but one is {}; ",
      call.num_classes - 1,
      targets.masked_select(is_wrong)[0].item<std::int64_t>());
}

}  // namespace

std::string complain_about_dtype(
    std::string_view name,
    const at::Tensor& tensor) {
  const at::ScalarType dtype = tensor.scalar_type();
  if (dtype == at::kDouble || dtype == at::kFloat || dtype == at::kBFloat16 ||
      dtype == at::kHalf) {
    return "";
  }
  return format(
      "{} must be fp64, fp32, bf16 or fp16, but is {}; ",
      name,
      c10::toString(dtype));
}

void throw_complaints(
    std::string_view function,
    const std::string& complaints) {
  if (complaints.empty()) return;
  throw ConfigError(format(
      "[kernels] {}(): {}",
      function,
      complaints.substr(0, complaints.size() - 2)));
}

RowTargets RowTargets::rows(std::int64_t first, std::int64_t count) const {
  RowTargets part = *this;
  part.classes = classes.narrow(0, first, count);
  part.is_counted = is_counted.narrow(0, first, count);
  part.weights = weights.narrow(0, first, count);
  return part;
}

at::Tensor RowTargets::total_of_classes() const {
  return class_weights.defined() ? class_weights.sum() : at::Tensor();
}

RowTargets read_targets(
    const LossCall& call,
    const at::Tensor& targets,
    std::int64_t ignore_index,
    double label_smoothing,
    const at::Tensor& class_weights) {
  std::string complaints = complain_about_targets(call, targets);
  complaints += complain_about_weights(call, class_weights);
  if (!(label_smoothing >= 0 && label_smoothing <= 1)) {
    complaints += format(
        "label_smoothing must be from 0 to 1, but is {}; ", label_smoothing);
  }
  if (call.num_classes == 0)
    complaints += "logits must have classes, but has none; ";
  throw_complaints(call.function, complaints);

  RowTargets made;
  made.smoothing = label_smoothing;
  made.num_classes = call.num_classes;
  const at::Tensor rows = targets.reshape({-1});
  made.is_counted = rows.ne(ignore_index);
  throw_complaints(
      call.function, complain_about_classes(call, rows, made.is_counted));
  made.classes =
      rows.masked_fill(made.is_counted.logical_not(), 0).contiguous();
  const at::ScalarType summed_in =
      call.logits.dtype() == at::kDouble ? at::kDouble : at::kFloat;
  made.weights = made.is_counted.to(summed_in);
  if (class_weights.defined()) {
    made.class_weights = class_weights.detach().to(summed_in).contiguous();
    made.weights.mul_(made.class_weights.index_select(0, made.classes));
  }
  return made;
}

}  // namespace accelerate::detail
