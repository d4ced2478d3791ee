#include "metrics/samples.h"

#include <algorithm>
#include <string>

#include <ATen/Functions.h>

#include <accelerate/error.h>

#include "base/text/text.h"

namespace accelerate::detail {

namespace {

at::Tensor first_rows_of(const at::Tensor& tensor, std::int64_t num_rows) {
  return tensor.dim() > 0 && tensor.size(0) > num_rows
      ? tensor.narrow(0, 0, num_rows)
      : tensor;
}

// A mask or weights, expanded to the size of `like`.
at::Tensor fitted_to(
    const SampleRequest& request,
    std::string_view what,
    const at::Tensor& given,
    const at::Tensor& like) {
  const at::Tensor tensor = given.detach().to(like.device());
  if (tensor.sizes() == like.sizes()) return tensor;
  if (tensor.numel() == 1 && like.numel() == 1)
    return tensor.view(like.sizes());
  if (tensor.dim() == 1 && like.dim() > 0 && tensor.size(0) == like.size(0)) {
    std::vector<std::int64_t> shape(static_cast<std::size_t>(like.dim()), 1);
    shape[0] = tensor.size(0);
    return tensor.view(shape).expand(like.sizes());
  }
  throw ConfigError(format(
      "[metrics] {}: {} have shape {}, but must have shape {} or its first "
      "dimension",
      request.metric,
      what,
      given.sizes(),
      like.sizes()));
}

void require_real(
    const SampleRequest& request,
    std::string_view what,
    const at::Tensor& given) {
  if (!given.is_complex()) return;
  throw ConfigError(format(
      "[metrics] {}: {} must be real, such as absolute values, but are complex",
      request.metric,
      what));
}

// Weights in fp64, expanded to the size of `like`; 0 where the mask is false.
at::Tensor weights_for(
    const SampleRequest& request,
    const MetricSamples& samples,
    const at::Tensor& like) {
  at::Tensor weights;
  if (samples.weights.defined()) {
    require_real(request, "weights", samples.weights);
    weights =
        fitted_to(request, "weights", samples.weights, like).to(at::kDouble);
    if (!(weights >= 0).all().item<bool>()) {
      throw ConfigError(format(
          "[metrics] {}: weights must be at least 0, but "
          "one is negative or NaN",
          request.metric));
    }
  } else {
    weights = at::ones(like.sizes(), like.options().dtype(at::kDouble));
  }
  if (!samples.mask.defined()) return weights;
  if (samples.mask.scalar_type() != at::kBool) {
    throw ConfigError(format(
        "[metrics] {}: the mask must be boolean, true for what "
        "counts, but has dtype {}",
        request.metric,
        c10::toString(samples.mask.scalar_type())));
  }
  return at::where(
      fitted_to(request, "a mask", samples.mask, like),
      weights,
      at::zeros({}, weights.options()));
}

LabelledSamples chosen(const LabelledSamples& all, const at::Tensor& keep) {
  if (keep.all().item<bool>()) return all;
  const at::Tensor rows = keep.nonzero().squeeze(1);
  return {
      all.predictions.index_select(0, rows),
      all.labels.index_select(0, rows),
      all.weights.index_select(0, rows)};
}

void require_labels(
    const SampleRequest& request,
    const at::Tensor& predictions,
    const at::Tensor& labels) {
  if (!at::isIntegralType(labels.scalar_type(), true)) {
    throw ConfigError(format(
        "[metrics] {}: labels must be classes as integers, but have dtype {}",
        request.metric,
        c10::toString(labels.scalar_type())));
  }
  const at::IntArrayRef shape = predictions.sizes();
  const bool fits = shape == labels.sizes() ||
      (!shape.empty() && shape.slice(0, shape.size() - 1) == labels.sizes());
  if (fits) return;
  throw ConfigError(format(
      "[metrics] {}: predictions must have the labels' shape, or one more "
      "dimension for the classes, but have shape {} for labels of shape {}",
      request.metric,
      shape,
      labels.sizes()));
}

}  // namespace

std::int64_t num_counted_rows(const MetricRanks& ranks, std::int64_t num_rows) {
  const std::int64_t remainder = ranks.remainder ? ranks.remainder() : 0;
  if (remainder <= 0) return num_rows;
  return std::clamp<std::int64_t>(
      remainder - ranks.group.rank() * num_rows, 0, num_rows);
}

WeightedValues weighted_values(
    const SampleRequest& request,
    const at::Tensor& given,
    const MetricSamples& samples,
    NanPolicy nan) {
  at::Tensor values = given.detach();
  require_real(request, "values", values);
  at::Tensor weights = weights_for(request, samples, values);
  if (values.dim() > 0) {
    const std::int64_t rows = num_counted_rows(request.ranks, values.size(0));
    values = first_rows_of(values, rows);
    weights = first_rows_of(weights, rows);
  }
  values = values.to(at::kDouble).reshape(-1);
  weights = weights.reshape(-1);
  const at::Tensor zero = at::zeros({}, values.options());
  if (nan == NanPolicy::ignore)
    weights = at::where(values.isnan(), zero, weights);
  // Zero times NaN would be NaN as well.
  values = at::where(weights > 0, values, zero);
  if (nan == NanPolicy::refuse && values.isnan().any().item<bool>()) {
    throw ConfigError(format(
        "[metrics] {}: a value is NaN, which "
        "NanPolicy::refuse refuses",
        request.metric));
  }
  return {values, weights};
}

LabelledSamples labelled_samples(
    const SampleRequest& request,
    const at::Tensor& given_predictions,
    const at::Tensor& given_labels,
    const MetricSamples& samples,
    std::int64_t ignore_index) {
  require_real(request, "predictions", given_predictions);
  require_labels(request, given_predictions, given_labels);
  at::Tensor predictions = given_predictions.detach();
  at::Tensor labels = given_labels.detach().to(predictions.device());
  at::Tensor weights = weights_for(request, samples, labels);
  const bool has_classes = predictions.dim() > labels.dim();
  if (labels.dim() > 0) {
    const std::int64_t rows = num_counted_rows(request.ranks, labels.size(0));
    predictions = first_rows_of(predictions, rows);
    labels = first_rows_of(labels, rows);
    weights = first_rows_of(weights, rows);
  }
  const std::int64_t num_samples = labels.numel();
  predictions = has_classes
      ? predictions.reshape({num_samples, predictions.size(-1)})
      : predictions.reshape(-1);
  labels = labels.to(at::kLong).reshape(-1);
  weights = weights.reshape(-1);
  return chosen(
      {predictions, labels, weights},
      at::logical_and(weights > 0, labels != ignore_index));
}

void require_classes(
    std::string_view metric,
    std::string_view what,
    const at::Tensor& classes,
    std::int64_t num_classes) {
  if (classes.numel() == 0) return;
  const auto least = classes.min().item<std::int64_t>();
  const auto most = classes.max().item<std::int64_t>();
  if (least >= 0 && most < num_classes) return;
  throw ConfigError(format(
      "[metrics] {}: {} {} is not one of {} classes, which are numbered from "
      "0; give samples without a class the label ignore_index",
      metric,
      what,
      least < 0 ? least : most,
      num_classes));
}

LabelledSamples
without_nan(std::string_view metric, LabelledSamples samples, bool ignore_nan) {
  if (!samples.predictions.is_floating_point()) return samples;
  at::Tensor is_nan = samples.predictions.isnan();
  if (is_nan.dim() > 1) is_nan = is_nan.any(1);
  if (!is_nan.any().item<bool>()) return samples;
  if (!ignore_nan) {
    throw ConfigError(format(
        "[metrics] {}: a score is NaN; set ignore_nan to "
        "leave out such samples",
        metric));
  }
  return chosen(samples, at::logical_not(is_nan));
}

at::Tensor predicted_classes(
    const LabelledSamples& samples,
    const ClassOptions& options) {
  const at::Tensor& predictions = samples.predictions;
  if (predictions.dim() > 1) {
    if (predictions.size(0) == 0)
      return at::empty({0}, predictions.options().dtype(at::kLong));
    return predictions.argmax(1);
  }
  if (predictions.is_floating_point())
    return (predictions > options.threshold).to(at::kLong);
  return predictions.to(at::kLong);
}

void require_state_of(std::string_view metric, const StateDict& state) {
  const auto saved = state.get<std::string>("metric");
  if (saved == metric) return;
  throw CheckpointError(format(
      "[metrics] the state of \"{}\" was passed to \"{}\"; register metrics in "
      "the same order, with the same options, as when they were saved",
      printable(saved),
      metric));
}

at::Tensor state_tensor(
    std::string_view metric,
    const StateDict& state,
    std::string_view key,
    at::IntArrayRef shape) {
  const auto tensor = state.get<at::Tensor>(key);
  bool fits = static_cast<std::size_t>(tensor.dim()) == shape.size();
  for (std::size_t i = 0; fits && i < shape.size(); ++i)
    fits =
        shape[i] < 0 || tensor.size(static_cast<std::int64_t>(i)) == shape[i];
  if (fits) return tensor.cpu();
  throw CheckpointError(format(
      "[metrics] the state of \"{}\" has {} of shape {}, with these options "
      "they have {}",
      metric,
      key,
      tensor.sizes(),
      shape));
}

}  // namespace accelerate::detail
