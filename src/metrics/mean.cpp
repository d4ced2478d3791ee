#include <cmath>
#include <limits>
#include <utility>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <accelerate/error.h>
#include <accelerate/metrics.h>

#include "metrics/samples.h"

namespace accelerate {

namespace {

at::Tensor two_sums() { return at::zeros({2}, at::kDouble); }

// The sum of the weighted values, and the sum of the weights.
at::Tensor sums_of(const detail::WeightedValues& values) {
  return at::stack(
      {(values.values * values.weights).sum(), values.weights.sum()});
}

double weighted_mean(const at::Tensor& sums) {
  const double weight = sums[1].item<double>();
  if (weight == 0) return std::numeric_limits<double>::quiet_NaN();
  return sums[0].item<double>() / weight;
}

MetricSamples with_weight(double weight) {
  return {.weights = at::full({}, weight, at::kDouble)};
}

}  // namespace

Mean::Mean(MetricRanks ranks, const MeanOptions& options)
    : SummedMetric(std::move(ranks), "mean", two_sums()), nan_(options.nan) {}

void Mean::update(const at::Tensor& values, const MetricSamples& samples) {
  const at::NoGradGuard no_grad;
  add(sums_of(
      detail::weighted_values({"Mean", ranks()}, values, samples, nan_)));
}

void Mean::update(double value, double weight) {
  update(at::full({}, value, at::kDouble), with_weight(weight));
}

double Mean::compute() const { return weighted_mean(total()); }

Sum::Sum(MetricRanks ranks, const SumOptions& options)
    : SummedMetric(std::move(ranks), "sum", two_sums()), nan_(options.nan) {}

void Sum::update(const at::Tensor& values, const MetricSamples& samples) {
  const at::NoGradGuard no_grad;
  add(sums_of(
      detail::weighted_values({"Sum", ranks()}, values, samples, nan_)));
}

void Sum::update(double value, double weight) {
  update(at::full({}, value, at::kDouble), with_weight(weight));
}

double Sum::compute() const { return total()[0].item<double>(); }

Perplexity::Perplexity(MetricRanks ranks, const PerplexityOptions& options)
    : SummedMetric(std::move(ranks), "perplexity", two_sums()),
      options_(options) {}

void Perplexity::update(
    const at::Tensor& logits,
    const at::Tensor& labels,
    const MetricSamples& samples) {
  const at::NoGradGuard no_grad;
  const detail::SampleRequest request{"Perplexity", ranks()};
  const detail::LabelledSamples tokens = detail::labelled_samples(
      request, logits, labels, samples, options_.ignore_index);
  if (tokens.predictions.dim() != 2) {
    throw ConfigError(
        "[metrics] Perplexity: logits must have one more dimension than the "
        "labels, the vocabulary, but have the same shape");
  }
  detail::require_classes(
      "Perplexity", "label", tokens.labels, tokens.predictions.size(1));
  const at::Tensor scores = tokens.predictions.scalar_type() == at::kDouble
      ? tokens.predictions
      : tokens.predictions.to(at::kFloat);
  const at::Tensor losses = scores.logsumexp({1}) -
      scores.gather(1, tokens.labels.unsqueeze(1)).squeeze(1);
  // Repeated rows have already been dropped.
  add(sums_of(detail::weighted_values(
      {"Perplexity", MetricRanks{}},
      losses,
      {.weights = tokens.weights},
      options_.nan)));
}

void Perplexity::update_losses(
    const at::Tensor& losses,
    const MetricSamples& samples) {
  const at::NoGradGuard no_grad;
  add(sums_of(detail::weighted_values(
      {"Perplexity", ranks()}, losses, samples, options_.nan)));
}

double Perplexity::compute() const { return std::exp(weighted_mean(total())); }

}  // namespace accelerate
