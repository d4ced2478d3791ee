#include <limits>
#include <string>
#include <utility>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <accelerate/detail/handles.h>
#include <accelerate/error.h>
#include <accelerate/metrics.h>

#include "base/require.h"
#include "base/text/text.h"
#include "metrics/roc_area.h"
#include "metrics/samples.h"

namespace accelerate {

namespace {

// Columns behind the scores of a row.
constexpr std::int64_t kLabelAndWeight = 2;

std::int64_t num_columns(const AUROCOptions& options) {
  return options.num_classes == 2 ? 1 : options.num_classes;
}

// The class whose scores a column has.
std::int64_t class_of_column(const AUROCOptions& options, std::int64_t column) {
  return options.num_classes == 2 ? 1 : column;
}

std::string kind_of(const AUROCOptions& options) {
  return options.num_bins == 0 ? "auroc" : "auroc_binned";
}

// [columns, of the class or not, bins].
at::Tensor empty_bins(const AUROCOptions& options) {
  return at::zeros({num_columns(options), 2, options.num_bins}, at::kDouble);
}

// [samples, columns].
at::Tensor scores_of(
    const AUROCOptions& options,
    const at::Tensor& predictions) {
  const std::int64_t columns = num_columns(options);
  if (columns == 1 && predictions.dim() == 1) return predictions.unsqueeze(1);
  if (predictions.dim() == 2 && predictions.size(1) == options.num_classes)
    return columns == 1 ? predictions.narrow(1, 1, 1) : predictions;
  throw ConfigError(detail::format(
      "[metrics] AUROC: scores must have num_classes classes, but have {} "
      "instead of {}",
      predictions.dim() == 2 ? predictions.size(1) : 1,
      options.num_classes));
}

at::Tensor binned(const AUROCOptions& options, const at::Tensor& rows) {
  const std::int64_t columns = num_columns(options);
  const std::int64_t bins = options.num_bins;
  const at::Tensor scores = rows.narrow(1, 0, columns);
  if (!at::logical_and(scores >= 0, scores <= 1).all().item<bool>()) {
    throw ConfigError(
        "[metrics] AUROC: with num_bins, scores must be between 0 and 1, but "
        "one is not; pass probabilities, or leave num_bins at 0");
  }
  const at::Tensor places = (scores * static_cast<double>(bins))
                                .floor()
                                .to(at::kLong)
                                .clamp_max(bins - 1);
  std::vector<at::Tensor> counts;
  for (std::int64_t column = 0; column < columns; ++column) {
    const at::Tensor is_of_class =
        (rows.select(1, columns) ==
         static_cast<double>(class_of_column(options, column)))
            .to(at::kLong);
    counts.push_back(
        at::bincount(
            is_of_class * bins + places.select(1, column).contiguous(),
            rows.select(1, columns + 1).contiguous(),
            2 * bins)
            .to(at::kDouble)
            .view({2, bins}));
  }
  return at::stack(counts);
}

std::vector<detail::ScoredSample> column_of(
    const AUROCOptions& options,
    const at::Tensor& rows,
    std::int64_t column) {
  const std::int64_t columns = num_columns(options);
  const auto positive = static_cast<double>(class_of_column(options, column));
  std::vector<detail::ScoredSample> samples;
  samples.reserve(static_cast<std::size_t>(rows.size(0)));
  const double* row = rows.const_data_ptr<double>();
  for (std::int64_t i = 0; i < rows.size(0); ++i, row += rows.size(1)) {
    samples.push_back(
        {row[column], row[columns] == positive, row[columns + 1]});
  }
  return samples;
}

}  // namespace

// Areas by column, fp64.
struct AUROC::Areas {
  at::Tensor areas;
  /// Weights of the samples of the class.
  at::Tensor weights;
};

AUROC::AUROC(MetricRanks ranks, const AUROCOptions& options)
    : ranks_(std::move(ranks)), options_(options) {
  detail::require_at_least("metrics", "num_classes", options.num_classes, 2);
  detail::require_at_least("metrics", "num_bins", options.num_bins, 0);
  if (options.average == ClassAverage::micro) {
    throw ConfigError(
        "[metrics] AUROC: average must be macro or weighted, but is micro");
  }
  reset();
}

void AUROC::reset() {
  rows_.clear();
  bins_ = options_.num_bins > 0 ? empty_bins(options_) : at::Tensor();
}

void AUROC::update(
    const at::Tensor& scores,
    const at::Tensor& labels,
    const MetricSamples& samples) {
  const at::NoGradGuard no_grad;
  const detail::LabelledSamples counted = detail::without_nan(
      "AUROC",
      detail::labelled_samples(
          {"AUROC", ranks_},
          scores,
          labels,
          samples,
          options_.classes.ignore_index),
      options_.classes.ignore_nan);
  detail::require_classes(
      "AUROC", "label", counted.labels, options_.num_classes);
  const at::Tensor rows =
      at::cat(
          {scores_of(options_, counted.predictions).to(at::kDouble),
           counted.labels.to(at::kDouble).unsqueeze(1),
           counted.weights.unsqueeze(1)},
          1)
          .cpu();
  if (rows.size(0) == 0) return;
  if (options_.num_bins > 0) {
    if (!bins_.defined()) detail::throw_moved_from("AUROC");
    bins_ = bins_ + binned(options_, rows);
  } else {
    rows_.push_back(rows);
  }
}

AUROC::Areas AUROC::areas() const {
  const std::int64_t columns = num_columns(options_);
  const at::Tensor nan = at::full(
      {columns}, std::numeric_limits<double>::quiet_NaN(), at::kDouble);
  Areas result{nan, at::zeros({columns}, at::kDouble)};
  const StateDict all = state_dict();
  const bool is_exact = options_.num_bins == 0;
  const auto state = all.get<at::Tensor>(is_exact ? "rows" : "bins");
  for (std::int64_t column = 0; column < columns; ++column) {
    double area = 0, weight = 0;
    if (is_exact) {
      const auto samples = column_of(options_, state, column);
      for (const detail::ScoredSample& sample : samples)
        if (sample.is_positive) weight += sample.weight;
      area = detail::roc_area(samples);
    } else {
      const double* negatives =
          state.const_data_ptr<double>() + column * 2 * options_.num_bins;
      const auto bins = static_cast<std::size_t>(options_.num_bins);
      const std::span<const double> positives(negatives + bins, bins);
      for (const double of_bin : positives) weight += of_bin;
      area = detail::roc_area_of_bins(positives, {negatives, bins});
    }
    result.areas[column] = area;
    result.weights[column] = weight;
  }
  return result;
}

at::Tensor AUROC::compute_per_class() const { return areas().areas; }

double AUROC::compute() const {
  const Areas all = areas();
  const at::Tensor is_known = at::logical_not(all.areas.isnan());
  const at::Tensor weights = options_.average == ClassAverage::macro
      ? is_known.to(at::kDouble)
      : all.weights * is_known.to(at::kDouble);
  const at::Tensor known = all.areas.nan_to_num(0);
  // 0 / 0, so NaN, if no class has an area.
  return (known * weights).sum().item<double>() / weights.sum().item<double>();
}

StateDict AUROC::state_dict() const {
  if (options_.num_bins > 0) {
    if (!bins_.defined()) detail::throw_moved_from("AUROC");
    at::Tensor bins = bins_.clone();
    if (ranks_.group.size() > 1) ranks_.group.all_reduce(bins);
    return {{"metric", kind_of(options_)}, {"bins", bins}};
  }
  const at::Tensor own = rows_.empty()
      ? at::empty({0, num_columns(options_) + kLabelAndWeight}, at::kDouble)
      : at::cat(rows_);
  const at::Tensor rows = ranks_.group.size() > 1
      ? at::cat(ranks_.group.all_gather_uneven(own))
      : own;
  return {{"metric", kind_of(options_)}, {"rows", rows}};
}

void AUROC::load_state_dict(const StateDict& state) {
  const std::string kind = kind_of(options_);
  detail::require_state_of(kind, state);
  const std::int64_t rank = ranks_.group.rank();
  const std::int64_t size = ranks_.group.size();
  const std::int64_t columns = num_columns(options_);
  if (options_.num_bins > 0) {
    const at::Tensor bins = detail::state_tensor(
        kind, state, "bins", {columns, 2, options_.num_bins});
    bins_ = rank == 0 ? bins.to(at::kDouble).clone() : empty_bins(options_);
    return;
  }
  const at::Tensor rows = detail::state_tensor(
      kind, state, "rows", {-1, columns + kLabelAndWeight});
  // Each rank keeps its share of the scores.
  const std::int64_t begin = rows.size(0) * rank / size;
  const std::int64_t end = rows.size(0) * (rank + 1) / size;
  rows_ = {rows.to(at::kDouble).narrow(0, begin, end - begin).clone()};
}

}  // namespace accelerate
