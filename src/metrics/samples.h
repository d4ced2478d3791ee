#pragma once

#include <cstdint>
#include <string_view>

#include <ATen/core/Tensor.h>

#include <accelerate/metrics.h>

namespace accelerate::detail {

/// Values that count, each with a weight above 0; both 1-d.
struct WeightedValues {
  at::Tensor values;
  /// fp64.
  at::Tensor weights;
};

/// Predictions that count: scores or classes ([M] or [M, C]), with labels
/// (int64) and weights (fp64), [M] each.
struct LabelledSamples {
  at::Tensor predictions;
  at::Tensor labels;
  at::Tensor weights;
};

/// What is sampled; `metric` is the beginning of error messages.
struct SampleRequest {
  std::string_view metric;
  const MetricRanks& ranks;
};

/// Number of this rank's first rows that count, of a batch of `num_rows` on
/// each rank: gather_for_metrics() joins the ranks' rows in their order and
/// keeps the first `remainder`.
std::int64_t num_counted_rows(const MetricRanks& ranks, std::int64_t num_rows);

/// fp64 values without the rows that were repeated and what samples leave out.
WeightedValues weighted_values(
    const SampleRequest& request,
    const at::Tensor& values,
    const MetricSamples& samples,
    NanPolicy nan);

/// Predictions and labels, likewise; scores keep their dtype.
LabelledSamples labelled_samples(
    const SampleRequest& request,
    const at::Tensor& predictions,
    const at::Tensor& labels,
    const MetricSamples& samples,
    std::int64_t ignore_index);

/// Throws ConfigError for classes outside of [0, num_classes). `what`: "label".
void require_classes(
    std::string_view metric,
    std::string_view what,
    const at::Tensor& classes,
    std::int64_t num_classes);

/// Leaves out samples with scores that are not a number, or throws.
LabelledSamples
without_nan(std::string_view metric, LabelledSamples samples, bool ignore_nan);

/// The classes that were predicted: those given, those with the highest score
/// (the first of equal ones), or 1 where the only score is above the threshold.
at::Tensor predicted_classes(
    const LabelledSamples& samples,
    const ClassOptions& options);

/// Throws CheckpointError unless the state is one of this metric.
void require_state_of(std::string_view metric, const StateDict& state);
/// The tensor of a state, on the CPU. Throws CheckpointError if it has another
/// shape; a size of -1 may be any.
at::Tensor state_tensor(
    std::string_view metric,
    const StateDict& state,
    std::string_view key,
    at::IntArrayRef shape);

}  // namespace accelerate::detail
