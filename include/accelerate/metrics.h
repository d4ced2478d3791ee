#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accelerate/export.h>
#include <accelerate/state_dict.h>
#include <accelerate/world.h>

// Metrics over all ranks. Each rank updates a metric with its own batches; the
// metric keeps sums (or scores), and makes one collective when it is computed:
//
//     Accuracy accuracy(accelerator, {.top_k = 5});
//     for (auto& [inputs, labels] : loader)
//       accuracy.update(model(inputs), labels);
//     accelerator.print(std::to_string(accuracy.compute()));
//
// The result is that of one process that reads every sample once, whatever the
// number of ranks: batches can have any size, including 0, and rows that a
// loader repeated to fill its last batch are left out, as by
// gather_for_metrics(). For this, dimension 0 of the arguments must be the
// samples of the current batch.
//
// compute() and state_dict() are collective, everything else is local. Inputs
// can have any floating-point dtype, including bf16, and be on any device; sums
// are fp64 or int64. Nothing is recorded by autograd. Not thread-safe.
//
// Metrics can be registered for checkpointing. A checkpoint has the combined
// state of all ranks, so training can be resumed on more or fewer.

namespace accelerate {

/// The ranks of a metric: an Accelerator, or a group of your own. By default,
/// this process alone.
struct MetricRanks {
  /// Ranks that read different data.
  Group group = {};
  /// GradientState::remainder() of the batch passed to update(); unset: samples
  /// are never repeated.
  std::function<std::int64_t()> remainder = {};
};

/// What happens to NaN values.
enum class NanPolicy {
  /// The result is NaN as well.
  propagate,
  /// They are left out, with their weights.
  ignore,
  /// update() throws ConfigError.
  refuse
};

/// Which values of a batch count, and how much. Each tensor has the shape of
/// the values (of the labels, if there are labels), or only its first
/// dimension.
struct MetricSamples {
  /// Not negative; undefined: 1 each.
  at::Tensor weights = {};
  /// Boolean, false for values to leave out; undefined: all count.
  at::Tensor mask = {};
};

/// Base class of metrics whose state is a tensor of sums.
class ACCELERATE_API SummedMetric {
 public:
  /// Forgets everything.
  void reset();
  /// The sums over all ranks. Collective.
  [[nodiscard]] StateDict state_dict() const;
  /// Continues from a state of any number of ranks; all ranks must load it.
  /// Throws CheckpointError for a state of another metric or with other
  /// options.
  void load_state_dict(const StateDict& state);

 protected:
  SummedMetric(MetricRanks ranks, std::string kind, const at::Tensor& zeros);

  /// Adds to this rank's sums; of the shape of `zeros`.
  void add(const at::Tensor& amounts);
  /// The sums over all ranks, on the CPU.
  [[nodiscard]] at::Tensor total() const;
  /// The ranks that the metric was made for.
  [[nodiscard]] const MetricRanks& ranks() const { return ranks_; }

 private:
  MetricRanks ranks_;
  std::string kind_;
  at::Tensor sums_;
};

struct MeanOptions {
  /// What happens to NaN values.
  NanPolicy nan = NanPolicy::propagate;
};

/// The weighted mean of values, such as losses.
class ACCELERATE_API Mean : public SummedMetric {
 public:
  explicit Mean(MetricRanks ranks = {}, const MeanOptions& options = {});
  /// Values of any shape. A loss that is already a mean over a batch is 0-d:
  /// its weight is the number of samples, and it counts even if some were
  /// repeated.
  void update(const at::Tensor& values, const MetricSamples& samples = {});
  void update(double value, double weight = 1);
  /// NaN without values. Collective.
  [[nodiscard]] double compute() const;

 private:
  NanPolicy nan_;
};

struct SumOptions {
  /// What happens to NaN values.
  NanPolicy nan = NanPolicy::propagate;
};

/// The weighted sum of values.
class ACCELERATE_API Sum : public SummedMetric {
 public:
  explicit Sum(MetricRanks ranks = {}, const SumOptions& options = {});
  void update(const at::Tensor& values, const MetricSamples& samples = {});
  /// Adds values of any shape, times their weights. With samples, a 0-d value
  /// counts once.
  void update(double value, double weight = 1);
  /// 0 without values. Collective.
  [[nodiscard]] double compute() const;

 private:
  NanPolicy nan_;
};

/// How classification metrics read predictions.
struct ClassOptions {
  /// Samples with this label are left out.
  std::int64_t ignore_index = -100;
  /// With two classes and one score per prediction, class 1 is predicted above
  /// this.
  double threshold = 0.5;
  /// Skip samples whose score is NaN. If false, update() throws ConfigError.
  bool ignore_nan = false;
};

struct AccuracyOptions {
  /// A sample is correct if its label is among this many highest scores; equal
  /// scores rank by class.
  std::int64_t top_k = 1;
  /// How predictions are read.
  ClassOptions classes = {};
};

/// The fraction of samples whose class is predicted correctly.
class ACCELERATE_API Accuracy : public SummedMetric {
 public:
  explicit Accuracy(
      MetricRanks ranks = {},
      const AccuracyOptions& options = {});
  /// `labels` are integers of any shape, such as [N]. `predictions` are scores
  /// with one more dimension, the classes, such as [N, C]; or have the shape of
  /// the labels: classes as integers, or scores of class 1 of two.
  void update(
      const at::Tensor& predictions,
      const at::Tensor& labels,
      const MetricSamples& samples = {});
  /// NaN without samples. Collective.
  [[nodiscard]] double compute() const;

 private:
  AccuracyOptions options_;
};

struct PerplexityOptions {
  /// Tokens with this label are left out.
  std::int64_t ignore_index = -100;
  /// What happens to NaN losses.
  NanPolicy nan = NanPolicy::propagate;
};

/// e to the mean negative log-likelihood of the tokens.
class ACCELERATE_API Perplexity : public SummedMetric {
 public:
  explicit Perplexity(
      MetricRanks ranks = {},
      const PerplexityOptions& options = {});
  /// `logits`: [..., vocabulary]; `labels`: their leading dimensions, already
  /// shifted. Computed in fp32 at least.
  void update(
      const at::Tensor& logits,
      const at::Tensor& labels,
      const MetricSamples& samples = {});
  /// Losses of single tokens; or a mean over some, 0-d, weighted by their
  /// number.
  void update_losses(
      const at::Tensor& losses,
      const MetricSamples& samples = {});
  /// NaN without tokens. Collective.
  [[nodiscard]] double compute() const;

 private:
  PerplexityOptions options_;
};

struct ConfusionMatrixOptions {
  /// Number of classes, at least 2.
  std::int64_t num_classes = 2;
  /// How predictions are read.
  ClassOptions classes = {};
};

/// How often samples of each class were predicted as each class.
class ACCELERATE_API ConfusionMatrix : public SummedMetric {
 public:
  explicit ConfusionMatrix(
      MetricRanks ranks = {},
      const ConfusionMatrixOptions& options = {});
  /// Like Accuracy::update(), without weights.
  void update(
      const at::Tensor& predictions,
      const at::Tensor& labels,
      const MetricSamples& samples = {});
  /// [num_classes, num_classes], int64: a row for each label, a column for each
  /// prediction. Collective.
  [[nodiscard]] at::Tensor compute() const;

 private:
  ConfusionMatrixOptions options_;
};

/// How per-class values become one.
enum class ClassAverage {
  /// Over all samples, whatever their class.
  micro,
  /// The mean over classes.
  macro,
  /// The mean over classes, weighted by their samples.
  weighted
};

struct F1Options {
  /// Number of classes, at least 2.
  std::int64_t num_classes = 2;
  /// How the classes' values become one.
  ClassAverage average = ClassAverage::macro;
  /// How predictions are read.
  ClassOptions classes = {};
};

/// The harmonic mean of precision and recall. With `macro`, classes that are
/// neither a label nor a prediction of any sample do not count.
class ACCELERATE_API F1 : public SummedMetric {
 public:
  explicit F1(MetricRanks ranks = {}, const F1Options& options = {});
  /// Like Accuracy::update().
  void update(
      const at::Tensor& predictions,
      const at::Tensor& labels,
      const MetricSamples& samples = {});
  /// 0 without samples. Collective.
  [[nodiscard]] double compute() const;
  /// One value per class, fp64; 0 for a class that does not occur. Collective.
  [[nodiscard]] at::Tensor compute_per_class() const;

 private:
  F1Options options_;
};

struct AUROCOptions {
  /// 2: the scores are of class 1. More: each class against the rest.
  std::int64_t num_classes = 2;
  /// macro or weighted; only used with more than two classes.
  ClassAverage average = ClassAverage::macro;
  /// 0: exact, ties count half; keeps every score, in fp64, and gathers them.
  /// Otherwise, an approximation in constant memory, with that many bins of
  /// scores from 0 to 1 (others throw), for more samples than fit into memory.
  std::int64_t num_bins = 0;
  /// Which samples are left out.
  ClassOptions classes = {};
};

/// The area under the receiver operating characteristic: the probability that a
/// sample of a class has a higher score than one of another.
class ACCELERATE_API AUROC {
 public:
  explicit AUROC(MetricRanks ranks = {}, const AUROCOptions& options = {});
  /// `scores`: [N] or [N, 2] for two classes, else [N, num_classes]; `labels`:
  /// [N].
  void update(
      const at::Tensor& scores,
      const at::Tensor& labels,
      const MetricSamples& samples = {});
  /// NaN if no class has both samples of it and others. Collective.
  [[nodiscard]] double compute() const;
  /// One value per class ([1] for two classes), fp64; NaN for a class without
  /// samples of it, or without others. Collective.
  [[nodiscard]] at::Tensor compute_per_class() const;
  /// Forgets everything.
  void reset();
  /// Like SummedMetric's; the state of an exact AUROC has every score.
  [[nodiscard]] StateDict state_dict() const;
  /// Continues from such a state; all ranks must load it. Throws
  /// CheckpointError for another metric's.
  void load_state_dict(const StateDict& state);

 private:
  struct Areas;

  [[nodiscard]] Areas areas() const;

  MetricRanks ranks_;
  AUROCOptions options_;
  /// Without bins: one row per sample, with its scores, label and weight.
  std::vector<at::Tensor> rows_;
  /// With bins: the samples' weights by column, by whether they are of the
  /// class, and by bin.
  at::Tensor bins_;
};

}  // namespace accelerate
