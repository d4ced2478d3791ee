#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accelerate/export.h>
#include <accelerate/state_dict.h>
#include <accelerate/world.h>

// Metrics over all ranks. Each is given the batches of its own rank, keeps sums
// (or scores), and makes one collective when it is computed:
//
//     Accuracy accuracy(accelerator, {.top_k = 5});
//     for (auto& [inputs, labels] : loader)
//       accuracy.update(model(inputs), labels);
//     accelerator.print(std::to_string(accuracy.compute()));
//
// The result is that of one process that reads every sample once, whatever the
// number of ranks: batches may have any sizes, also none, and rows that a loader
// repeated to fill its last batch are left out, as gather_for_metrics() does.
// For this, dimension 0 of what is given are the samples of the current batch.
//
// compute() and state_dict() are collective, everything else is local. Inputs
// may have any floating-point dtype, also bf16, and be on any device; sums are
// fp64 or int64. Nothing is recorded by autograd. Not for several threads at
// once.
//
// Metrics can be registered for checkpointing. A checkpoint has the state of
// all ranks together, so training may be resumed on more or fewer.

namespace accelerate {

/// The ranks of a metric: an Accelerator, or a group of one's own. By default
/// this process alone.
struct MetricRanks {
  /// Ranks that read different data.
  Group group = {};
  /// GradientState::remainder() of the batch that update() is given; unset:
  /// nothing is ever repeated.
  std::function<std::int64_t()> remainder = {};
};

/// What happens to values that are not a number.
enum class NanPolicy {
  /// The result is not a number, either.
  propagate,
  /// They are left out, with their weight.
  ignore,
  /// update() throws ConfigError.
  refuse
};

/// What of a batch counts, and how much. Each tensor has the shape of the values
/// (of the labels, where there are labels), or only the first of its dimensions.
struct MetricSamples {
  /// Not negative; undefined: 1 each.
  at::Tensor weights = {};
  /// Boolean, false for values to leave out; undefined: all count.
  at::Tensor mask = {};
};

/// What metrics share whose state is a tensor of sums.
class ACCELERATE_API SummedMetric {
 public:
  /// Forgets everything.
  void reset();
  /// The sums over all ranks. Collective.
  [[nodiscard]] StateDict state_dict() const;
  /// Continues from a state of any number of ranks; all ranks load it. Throws
  /// CheckpointError for that of another metric or other options.
  void load_state_dict(const StateDict& state);

 protected:
  SummedMetric(MetricRanks ranks, std::string kind, const at::Tensor& zeros);

  void add(const at::Tensor& amounts);
  /// The sums over all ranks, on the CPU.
  [[nodiscard]] at::Tensor total() const;
  [[nodiscard]] const MetricRanks& ranks() const { return ranks_; }

 private:
  MetricRanks ranks_;
  std::string kind_;
  at::Tensor sums_;
};

struct MeanOptions {
  NanPolicy nan = NanPolicy::propagate;
};

/// The weighted mean of values, as of losses.
class ACCELERATE_API Mean : public SummedMetric {
 public:
  explicit Mean(MetricRanks ranks = {}, const MeanOptions& options = {});
  /// Values of any shape. A loss that is already a mean over a batch is 0-d: its
  /// weight is the number of samples, and it counts even if some were repeated.
  void update(const at::Tensor& values, const MetricSamples& samples = {});
  void update(double value, double weight = 1);
  /// Not a number without values. Collective.
  [[nodiscard]] double compute() const;

 private:
  NanPolicy nan_;
};

struct SumOptions {
  NanPolicy nan = NanPolicy::propagate;
};

/// The weighted sum of values.
class ACCELERATE_API Sum : public SummedMetric {
 public:
  explicit Sum(MetricRanks ranks = {}, const SumOptions& options = {});
  void update(const at::Tensor& values, const MetricSamples& samples = {});
  void update(double value, double weight = 1);
  /// 0 without values. Collective.
  [[nodiscard]] double compute() const;

 private:
  NanPolicy nan_;
};

/// How predictions are read by metrics of classes.
struct ClassOptions {
  /// Samples with this label are left out.
  std::int64_t ignore_index = -100;
  /// A prediction of two classes, given as one score each, is 1 above this.
  double threshold = 0.5;
  /// Leave out samples with a score that is not a number; else update() throws
  /// ConfigError.
  bool ignore_nan = false;
};

struct AccuracyOptions {
  /// A sample is right if its label is among this many highest scores; equal
  /// scores rank by class.
  std::int64_t top_k = 1;
  ClassOptions classes = {};
};

/// The share of samples whose class is predicted.
class ACCELERATE_API Accuracy : public SummedMetric {
 public:
  explicit Accuracy(
      MetricRanks ranks = {},
      const AccuracyOptions& options = {});
  /// `labels` are whole numbers of any shape, such as [N]. `predictions` are
  /// scores with one more dimension, the classes, as [N, C]; or have the shape
  /// of the labels: classes as whole numbers, or scores of class 1 of two.
  void update(
      const at::Tensor& predictions,
      const at::Tensor& labels,
      const MetricSamples& samples = {});
  /// Not a number without samples. Collective.
  [[nodiscard]] double compute() const;

 private:
  AccuracyOptions options_;
};

struct PerplexityOptions {
  /// Tokens with this label are left out.
  std::int64_t ignore_index = -100;
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
  /// Losses of single tokens; or a mean over some, 0-d, with their number as its
  /// weight.
  void update_losses(
      const at::Tensor& losses,
      const MetricSamples& samples = {});
  /// Not a number without tokens. Collective.
  [[nodiscard]] double compute() const;

 private:
  PerplexityOptions options_;
};

struct ConfusionMatrixOptions {
  std::int64_t num_classes = 2;
  ClassOptions classes = {};
};

/// How often samples of a class were predicted to be of each.
class ACCELERATE_API ConfusionMatrix : public SummedMetric {
 public:
  explicit ConfusionMatrix(
      MetricRanks ranks = {},
      const ConfusionMatrixOptions& options = {});
  /// As Accuracy::update(), without weights.
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

/// How the figures of classes become one.
enum class ClassAverage {
  /// Over all samples, whatever their class.
  micro,
  /// The mean over classes.
  macro,
  /// The mean over classes by the weight of their samples.
  weighted
};

struct F1Options {
  std::int64_t num_classes = 2;
  ClassAverage average = ClassAverage::macro;
  ClassOptions classes = {};
};

/// The harmonic mean of precision and recall. With `macro`, classes that are
/// neither a label nor a prediction of any sample do not count.
class ACCELERATE_API F1 : public SummedMetric {
 public:
  explicit F1(MetricRanks ranks = {}, const F1Options& options = {});
  /// As Accuracy::update().
  void update(
      const at::Tensor& predictions,
      const at::Tensor& labels,
      const MetricSamples& samples = {});
  /// 0 without samples. Collective.
  [[nodiscard]] double compute() const;
  /// One for each class, fp64: 0 for a class that does not occur. Collective.
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
  /// Else an approximation by that many bins of scores from 0 to 1.
  std::int64_t num_bins = 0;
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
  /// Not a number if no class has samples of it and others. Collective.
  [[nodiscard]] double compute() const;
  /// One for each class ([1] for two classes), fp64; not a number for a class
  /// without samples of it, or without others. Collective.
  [[nodiscard]] at::Tensor compute_per_class() const;
  void reset();
  /// As those of SummedMetric; an exact one has every score.
  [[nodiscard]] StateDict state_dict() const;
  void load_state_dict(const StateDict& state);

 private:
  struct Areas;

  [[nodiscard]] Areas areas() const;

  MetricRanks ranks_;
  AUROCOptions options_;
  /// Exact: one row per sample, its scores, label and weight.
  std::vector<at::Tensor> rows_;
  /// Binned: weights of samples by column, whether they are of the class, bin.
  at::Tensor bins_;
};

}  // namespace accelerate
