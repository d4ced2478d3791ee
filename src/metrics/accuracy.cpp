#include <limits>
#include <utility>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <accelerate/error.h>
#include <accelerate/metrics.h>

#include "base/require.h"
#include "base/text/text.h"
#include "metrics/samples.h"

namespace accelerate {

namespace {

std::string kind_of_accuracy(const AccuracyOptions& options) {
  return options.top_k == 1 ? "accuracy"
                            : detail::format("accuracy@{}", options.top_k);
}

// Whether each label is among the highest scores.
at::Tensor is_among_highest(
    const detail::LabelledSamples& samples,
    std::int64_t top_k) {
  const at::Tensor& scores = samples.predictions;
  if (scores.dim() != 2 || scores.size(1) < top_k) {
    throw ConfigError(detail::format(
        "[metrics] Accuracy: with top_k {}, predictions must be scores of at "
        "least as many classes, in one more dimension than the labels",
        top_k));
  }
  detail::require_classes("Accuracy", "label", samples.labels, scores.size(1));
  const at::Tensor labels = samples.labels.unsqueeze(1);
  const at::Tensor own = scores.gather(1, labels);
  const at::Tensor classes =
      at::arange(scores.size(1), labels.options()).unsqueeze(0);
  const at::Tensor is_before = at::logical_or(
      scores > own, at::logical_and(scores == own, classes < labels));
  return is_before.sum(1) < top_k;
}

}  // namespace

Accuracy::Accuracy(MetricRanks ranks, const AccuracyOptions& options)
    : SummedMetric(
          std::move(ranks),
          kind_of_accuracy(options),
          at::zeros({2}, at::kDouble)),
      options_(options) {
  detail::require_at_least("metrics", "top_k", options.top_k, 1);
}

void Accuracy::update(
    const at::Tensor& predictions,
    const at::Tensor& labels,
    const MetricSamples& samples) {
  const at::NoGradGuard no_grad;
  const detail::LabelledSamples counted = detail::without_nan(
      "Accuracy",
      detail::labelled_samples(
          {"Accuracy", ranks()},
          predictions,
          labels,
          samples,
          options_.classes.ignore_index),
      options_.classes.ignore_nan);
  const bool has_scores = counted.predictions.dim() > 1;
  const at::Tensor is_right = has_scores || options_.top_k > 1
      ? is_among_highest(counted, options_.top_k)
      : detail::predicted_classes(counted, options_.classes) == counted.labels;
  add(at::stack(
      {(is_right.to(at::kDouble) * counted.weights).sum(),
       counted.weights.sum()}));
}

double Accuracy::compute() const {
  const at::Tensor sums = total();
  const double weight = sums[1].item<double>();
  if (weight == 0) return std::numeric_limits<double>::quiet_NaN();
  return sums[0].item<double>() / weight;
}

}  // namespace accelerate
