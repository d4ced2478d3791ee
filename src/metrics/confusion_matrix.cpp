#include <string_view>
#include <utility>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <accelerate/error.h>
#include <accelerate/metrics.h>

#include "base/require.h"
#include "metrics/samples.h"

namespace accelerate {

namespace {

struct PredictedSamples {
  at::Tensor predicted;
  at::Tensor labels;
  at::Tensor weights;
};

// Samples with classes instead of scores, all in range.
PredictedSamples predicted_samples(
    std::string_view metric,
    const detail::LabelledSamples& samples,
    const ClassOptions& options,
    std::int64_t num_classes) {
  const detail::LabelledSamples counted =
      detail::without_nan(metric, samples, options.ignore_nan);
  at::Tensor predicted = detail::predicted_classes(counted, options);
  detail::require_classes(metric, "label", counted.labels, num_classes);
  detail::require_classes(metric, "prediction", predicted, num_classes);
  return {std::move(predicted), counted.labels, counted.weights};
}

// Twice the true positives over predictions and labels: [C], and 0 where there
// are none.
at::Tensor f1_of(const at::Tensor& right, const at::Tensor& occurrences) {
  const at::Tensor ones = at::ones({}, occurrences.options());
  return 2 * right / at::where(occurrences > 0, occurrences, ones);
}

}  // namespace

ConfusionMatrix::ConfusionMatrix(
    MetricRanks ranks,
    const ConfusionMatrixOptions& options)
    : SummedMetric(
          std::move(ranks),
          "confusion_matrix",
          at::zeros({options.num_classes, options.num_classes}, at::kLong)),
      options_(options) {
  detail::require_at_least("metrics", "num_classes", options.num_classes, 1);
}

void ConfusionMatrix::update(
    const at::Tensor& predictions,
    const at::Tensor& labels,
    const MetricSamples& samples) {
  const at::NoGradGuard no_grad;
  if (samples.weights.defined()) {
    throw ConfigError(
        "[metrics] ConfusionMatrix counts samples, so weights must be "
        "undefined; use a mask to leave out samples");
  }
  const std::int64_t size = options_.num_classes;
  const PredictedSamples counted = predicted_samples(
      "ConfusionMatrix",
      detail::labelled_samples(
          {"ConfusionMatrix", ranks()},
          predictions,
          labels,
          samples,
          options_.classes.ignore_index),
      options_.classes,
      size);
  add(at::bincount(counted.labels * size + counted.predicted, {}, size * size)
          .view({size, size}));
}

at::Tensor ConfusionMatrix::compute() const { return total(); }

// Rows of the sums: true positives, predictions and labels of each class.
F1::F1(MetricRanks ranks, const F1Options& options)
    : SummedMetric(
          std::move(ranks),
          "f1",
          at::zeros({3, options.num_classes}, at::kDouble)),
      options_(options) {
  detail::require_at_least("metrics", "num_classes", options.num_classes, 1);
}

void F1::update(
    const at::Tensor& predictions,
    const at::Tensor& labels,
    const MetricSamples& samples) {
  const at::NoGradGuard no_grad;
  const std::int64_t size = options_.num_classes;
  const PredictedSamples counted = predicted_samples(
      "F1",
      detail::labelled_samples(
          {"F1", ranks()},
          predictions,
          labels,
          samples,
          options_.classes.ignore_index),
      options_.classes,
      size);
  const at::Tensor right =
      counted.weights * (counted.predicted == counted.labels).to(at::kDouble);
  add(at::stack(
      {at::bincount(counted.labels, right, size).to(at::kDouble),
       at::bincount(counted.predicted, counted.weights, size).to(at::kDouble),
       at::bincount(counted.labels, counted.weights, size).to(at::kDouble)}));
}

at::Tensor F1::compute_per_class() const {
  const at::Tensor sums = total();
  return f1_of(sums[0], sums[1] + sums[2]);
}

double F1::compute() const {
  const at::Tensor sums = total();
  const at::Tensor occurrences = sums[1] + sums[2];
  if (options_.average == ClassAverage::micro)
    return f1_of(sums[0].sum(), occurrences.sum()).item<double>();
  const at::Tensor each = f1_of(sums[0], occurrences);
  const at::Tensor weights = options_.average == ClassAverage::macro
      ? (occurrences > 0).to(at::kDouble)
      : sums[2];
  const double weight = weights.sum().item<double>();
  return weight == 0 ? 0 : (each * weights).sum().item<double>() / weight;
}

}  // namespace accelerate
