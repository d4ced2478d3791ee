#include <accelerate/metrics.h>

#include <cmath>
#include <limits>
#include <vector>

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <accelerate/error.h>

#include "metrics/roc_area.h"
#include "support/expect_error.h"
#include "support/table_sizes.h"

namespace accelerate {
namespace metrics_test {

const double kNan = std::numeric_limits<double>::quiet_NaN();

at::Tensor reals(const std::vector<double>& values) {
  return at::tensor(values, at::kDouble);
}
at::Tensor wholes(const std::vector<std::int64_t>& values) {
  return at::tensor(values, at::kLong);
}
// One row of scores per sample.
at::Tensor rows(const std::vector<double>& values, std::int64_t num_columns) {
  return reals(values).view({-1, num_columns});
}
std::vector<double> list(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.to(at::kDouble).reshape(-1).contiguous();
  return {
      flat.const_data_ptr<double>(),
      flat.const_data_ptr<double>() + flat.numel()};
}

TEST(Mean, WeighsValuesAndRows) {
  Mean mean;
  EXPECT_TRUE(std::isnan(mean.compute()));
  mean.update(reals({1, 2}));
  mean.update(6, 2);
  EXPECT_EQ(mean.compute(), 15.0 / 4);
  mean.reset();
  mean.update(
      rows({1, 2, 3, 4}, 2),
      {.weights = reals({1, 3}), .mask = wholes({1, 0}).to(at::kBool)});
  EXPECT_EQ(mean.compute(), 1.5);
}

TEST(Mean, OfBFloat16IsSummedInFp64) {
  Mean mean;
  mean.update(at::full({1001}, 1, at::kBFloat16));
  mean.update(at::zeros({0}, at::kBFloat16));
  EXPECT_EQ(mean.compute(), 1);
  Sum sum;
  sum.update(at::full({1001}, 1, at::kBFloat16));
  EXPECT_EQ(sum.compute(), 1001);
}

// Values between which fp32, fp16 or bf16 would not distinguish.
TEST(Metrics, TakeEveryDtypeWithAllItsDigits) {
  for (const at::ScalarType dtype :
       {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
    for (std::int64_t size = 0; size <= testing::largest_table_size(); ++size) {
      SCOPED_TRACE(::testing::Message() << dtype << ", " << size);
      const at::Tensor all =
          at::sin(at::arange(2 * size, at::kDouble) + 1).to(dtype);
      // One in two, so that they are not contiguous.
      const at::Tensor scores = all.slice(0, 0, 2 * size, 2);
      double sum = 0;
      for (const double each : list(scores)) sum += each;
      Sum found;
      found.update(scores);
      EXPECT_NEAR(found.compute(), sum, 1e-13);
      Mean mean;
      mean.update(scores, {.weights = at::full({size}, 0.5).to(dtype)});
      if (size > 0) {
        EXPECT_NEAR(mean.compute(), sum / static_cast<double>(size), 1e-13);
      }
      const at::Tensor labels = at::arange(size) % 2;
      Accuracy accuracy({}, {.classes = {.threshold = 0.25}});
      accuracy.update(scores, labels);
      AUROC auroc;
      auroc.update(scores, labels);
      double right = 0, pairs = 0, won = 0;
      const std::vector<double> each = list(scores);
      for (std::size_t i = 0; i < each.size(); ++i) {
        right += (each[i] > 0.25) == (i % 2 == 1);
        for (std::size_t j = 0; j < each.size(); ++j) {
          if (i % 2 == 0 || j % 2 == 1) continue;
          ++pairs;
          won += each[i] > each[j] ? 1 : each[i] == each[j] ? 0.5 : 0;
        }
      }
      if (size > 0) {
        EXPECT_EQ(accuracy.compute(), right / static_cast<double>(size));
      }
      if (pairs > 0) {
        EXPECT_NEAR(auroc.compute(), won / pairs, 1e-12);
      }
    }
    Mean scalar;
    scalar.update(at::full({}, 0.375, dtype));
    EXPECT_EQ(scalar.compute(), 0.375);
  }
  // Differences of 1e-12 count in double precision.
  Accuracy accuracy;
  accuracy.update(rows({0.5, 0.5 + 1e-12}, 2), wholes({1}));
  EXPECT_EQ(accuracy.compute(), 1);
  AUROC auroc;
  auroc.update(reals({0.5, 0.5 + 1e-12}), wholes({0, 1}));
  EXPECT_EQ(auroc.compute(), 1);
  Perplexity perplexity;
  perplexity.update(rows({1e-12, 0}, 2), wholes({0}));
  EXPECT_NEAR(perplexity.compute() - 2, -1e-12, 1e-14);
}

TEST(Metrics, RefuseComplexNumbers) {
  const at::Tensor numbers = at::complex(reals({1, 2}), reals({3, 4}));
  const at::Tensor labels = wholes({0, 1});
  const auto refuse = [](const std::string& text, const auto& update) {
    testing::expect_error<ConfigError>(update, text + " must be real");
  };
  Mean mean;
  refuse("values", [&] { mean.update(numbers); });
  refuse("weights", [&] { mean.update(reals({1, 2}), {.weights = numbers}); });
  Accuracy accuracy;
  refuse("predictions", [&] { accuracy.update(numbers, labels); });
  ConfusionMatrix matrix;
  refuse("predictions", [&] { matrix.update(numbers, labels); });
  F1 f1;
  refuse("predictions", [&] { f1.update(numbers, labels); });
  AUROC auroc;
  refuse("predictions", [&] { auroc.update(numbers, labels); });
  Perplexity perplexity;
  refuse("predictions", [&] {
    perplexity.update(numbers.view({1, 2}), wholes({0}));
  });
}

TEST(Mean, TreatsNanAsItsPolicySays) {
  const at::Tensor values = reals({1, kNan, 3});
  Mean spreading;
  spreading.update(values);
  EXPECT_TRUE(std::isnan(spreading.compute()));
  Mean ignoring({}, {.nan = NanPolicy::ignore});
  ignoring.update(values);
  EXPECT_EQ(ignoring.compute(), 2);
  Mean masked({}, {.nan = NanPolicy::refuse});
  masked.update(values, {.weights = reals({1, 0, 1})});
  EXPECT_EQ(masked.compute(), 2);
  testing::expect_error<ConfigError>(
      [&] { masked.update(values); }, "NanPolicy::refuse");
}

TEST(Mean, RefusesWeightsThatDoNotFit) {
  Mean mean;
  testing::expect_error<ConfigError>(
      [&] { mean.update(reals({1, 2}), {.weights = reals({1, 2, 3})}); },
      "weights have shape [3]");
  testing::expect_error<ConfigError>(
      [&] { mean.update(reals({1, 2}), {.weights = reals({1, -1})}); },
      "negative");
  testing::expect_error<ConfigError>(
      [&] { mean.update(reals({1}), {.mask = wholes({1})}); },
      "must be boolean");
}

TEST(Metrics, LeaveOutRepeatedRows) {
  // A round of 3 ranks with 2 rows each, 3 of them real.
  std::int64_t remainder = 3;
  MetricRanks ranks{.remainder = [&] { return remainder; }};
  Sum sum(ranks);
  sum.update(reals({1, 2, 4, 8}));
  EXPECT_EQ(sum.compute(), 7);
  remainder = -1;
  sum.update(reals({16}));
  EXPECT_EQ(sum.compute(), 23);
}

TEST(Accuracy, CountsTopKWithTiesByClass) {
  const at::Tensor scores = rows({.1, .5, .4, .3, .3, .3, .2, .1, .7}, 3);
  const at::Tensor labels = wholes({2, 1, 0});
  Accuracy first, second({}, {.top_k = 2});
  first.update(scores, labels);
  second.update(scores, labels);
  EXPECT_EQ(first.compute(), 0);
  EXPECT_EQ(second.compute(), 1);
}

TEST(Accuracy, TakesClassesScoresOfTwoAndSequences) {
  Accuracy classes, binary, sequences;
  classes.update(wholes({1, 2, 3, 4}), wholes({1, 2, 0, -100}));
  EXPECT_EQ(classes.compute(), 2.0 / 3);
  binary.update(reals({.4, .6, .5}), wholes({0, 1, 1}));
  EXPECT_EQ(binary.compute(), 2.0 / 3);
  sequences.update(
      rows({1, 0, 0, 1, 1, 0, 0, 1}, 2).view({2, 2, 2}),
      wholes({0, 1, 1, -100}).view({2, 2}));
  EXPECT_EQ(sequences.compute(), 2.0 / 3);
}

TEST(Accuracy, RefusesWhatHasNoClass) {
  Accuracy accuracy({}, {.top_k = 2});
  testing::expect_error<ConfigError>(
      [&] { accuracy.update(rows({1, 2}, 2), wholes({5})); }, "label 5");
  testing::expect_error<ConfigError>(
      [&] { accuracy.update(wholes({1}), wholes({1})); }, "top_k 2");
  testing::expect_error<ConfigError>(
      [&] { accuracy.update(rows({1, kNan}, 2), wholes({1})); }, "ignore_nan");
  testing::expect_error<ConfigError>(
      [&] { accuracy.update(rows({1, 2}, 2), wholes({1, 1, 1})); },
      "must have the labels' shape");
  testing::expect_error<ConfigError>(
      [&] { accuracy.update(rows({1, 2}, 2), reals({1})); }, "as integers");
  testing::expect_error<ConfigError>(
      [] { Accuracy({}, {.top_k = 0}); }, "top_k");
}

TEST(ClassOptions, DecideWhatCounts) {
  Accuracy accuracy(
      {},
      {.classes = {.ignore_index = 7, .threshold = 0.9, .ignore_nan = true}});
  accuracy.update(reals({.8, .95, kNan, .1}), wholes({0, 1, 1, 7}));
  EXPECT_EQ(accuracy.compute(), 1);
}

TEST(Perplexity, IsThatOfTheTokens) {
  Perplexity perplexity;
  perplexity.update(
      at::zeros({2, 3, 5}, at::kBFloat16),
      wholes({0, 1, 2, 3, 4, -100}).view({2, 3}));
  EXPECT_NEAR(perplexity.compute(), 5, 1e-5);
  Perplexity losses;
  losses.update_losses(at::full({}, 2.0), {.weights = reals({3})});
  losses.update_losses(reals({4}));
  EXPECT_NEAR(losses.compute(), std::exp(2.5), 1e-12);
}

TEST(Perplexity, OptionsDecideWhatCounts) {
  Perplexity perplexity({}, {.ignore_index = 0, .nan = NanPolicy::ignore});
  perplexity.update(rows({0, 0, 9, 0, kNan, 0}, 2), wholes({1, 0, 1}));
  EXPECT_NEAR(perplexity.compute(), 2, 1e-6);
}

TEST(ConfusionMatrix, HasARowForEachLabel) {
  ConfusionMatrix matrix({}, {.num_classes = 3});
  matrix.update(wholes({0, 1, 1, 2, 2}), wholes({0, 0, 1, 2, 0}));
  EXPECT_EQ(
      list(matrix.compute()), (std::vector<double>{1, 1, 1, 0, 1, 0, 0, 0, 1}));
  EXPECT_EQ(matrix.compute().scalar_type(), at::kLong);
  testing::expect_error<ConfigError>(
      [&] { matrix.update(wholes({3}), wholes({0})); }, "prediction 3");
  testing::expect_error<ConfigError>(
      [&] { matrix.update(wholes({0}), wholes({0}), {.weights = reals({1})}); },
      "weights must be undefined");
}

TEST(F1, HasThreeAverages) {
  // Per class: 2/3, 1/2, and nothing for the class that never occurs.
  const at::Tensor predicted = wholes({0, 0, 1, 1, 1}),
                   labels = wholes({0, 0, 0, 0, 1});
  const auto average = [&](ClassAverage of) {
    F1 f1({}, {.num_classes = 3, .average = of});
    f1.update(predicted, labels);
    return f1.compute();
  };
  F1 f1({}, {.num_classes = 3});
  EXPECT_EQ(f1.compute(), 0);
  f1.update(predicted, labels);
  EXPECT_EQ(
      list(f1.compute_per_class()), (std::vector<double>{4.0 / 6, 0.5, 0}));
  EXPECT_NEAR(average(ClassAverage::macro), 7.0 / 12, 1e-15);
  EXPECT_NEAR(average(ClassAverage::micro), 0.6, 1e-15);
  EXPECT_NEAR(average(ClassAverage::weighted), (4 * 2.0 / 3 + 0.5) / 5, 1e-15);
}

TEST(AUROC, CountsTiesHalf) {
  AUROC auroc;
  EXPECT_TRUE(std::isnan(auroc.compute()));
  auroc.update(reals({.1, .4, .35, .8}), wholes({0, 0, 1, 1}));
  EXPECT_EQ(auroc.compute(), 0.75);
  auroc.reset();
  auroc.update(rows({.5, .5, .5, .5, .9, .1}, 2), wholes({0, 1, 0}));
  EXPECT_EQ(auroc.compute(), 0.75);
  auroc.reset();
  auroc.update(reals({.1, .2}), wholes({1, 1}));
  EXPECT_TRUE(std::isnan(auroc.compute()));
}

TEST(AUROC, TakesEachClassAgainstTheRest) {
  const at::Tensor scores =
      rows({.8, .1, .1, .2, .6, .2, .6, .3, .1, .5, .4, .1}, 3);
  const at::Tensor labels = wholes({0, 1, 1, 0});
  AUROC macro({}, {.num_classes = 3}),
      binned({}, {.num_classes = 3, .num_bins = 10});
  macro.update(scores, labels);
  binned.update(scores, labels);
  const auto each = list(macro.compute_per_class());
  EXPECT_EQ(each[0], 0.75);
  EXPECT_EQ(each[1], 0.75);
  EXPECT_TRUE(std::isnan(each[2]));
  EXPECT_EQ(macro.compute(), 0.75);
  EXPECT_EQ(binned.compute(), 0.75);
  testing::expect_error<ConfigError>(
      [&] { binned.update(scores * 2, labels); }, "between 0 and 1");
  testing::expect_error<ConfigError>(
      [] { AUROC({}, {.average = ClassAverage::micro}); }, "micro");
}

TEST(AUROC, OfBinsIsThatOfPairsInThem) {
  AUROC auroc({}, {.num_bins = 2});
  auroc.update(reals({.1, .4, .35, 1}), wholes({0, 0, 1, 1}));
  EXPECT_EQ(auroc.compute(), 0.75);
  auroc.reset();
  auroc.update(reals({.1, .4}), wholes({1, 0}));
  EXPECT_EQ(auroc.compute(), 0.5);
}

TEST(RocArea, IsTheShareOfPairs) {
  // Compares with counting every pair, for scores with many ties.
  std::uint64_t state = 1;
  const auto next = [&](std::uint64_t size) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    return (state >> 33) % size;
  };
  for (int round = 0; round < 200; ++round) {
    std::vector<detail::ScoredSample> samples(next(30) + 2);
    for (auto& sample : samples) {
      sample = {
          static_cast<double>(next(6)),
          next(2) == 1,
          0.25 * static_cast<double>(next(4))};
    }
    double higher = 0, pairs = 0;
    for (const auto& positive : samples) {
      for (const auto& negative : samples) {
        if (!positive.is_positive || negative.is_positive) continue;
        const double weight = positive.weight * negative.weight;
        pairs += weight;
        if (positive.score > negative.score) higher += weight;
        if (positive.score == negative.score) higher += weight / 2;
      }
    }
    const double area = detail::roc_area(samples);
    if (pairs == 0) {
      EXPECT_TRUE(std::isnan(area));
    } else {
      EXPECT_EQ(area, higher / pairs);
    }
  }
}

TEST(Sum, LeavesOutNanOnRequest) {
  Sum sum({}, {.nan = NanPolicy::ignore});
  sum.update(reals({1, kNan, 3}));
  EXPECT_EQ(sum.compute(), 4);
}

// Only the first and the last of these samples count.
const ClassOptions kPicky{.ignore_index = 0, .ignore_nan = true};
at::Tensor picky_scores() {
  return rows({.1, .9, .6, .4, kNan, .5, .9, .1}, 2);
}
at::Tensor picky_labels() { return wholes({1, 0, 1, 1}); }

TEST(ConfusionMatrix, LeavesOutWhatItsOptionsSay) {
  ConfusionMatrix matrix({}, {.classes = kPicky});
  matrix.update(picky_scores(), picky_labels());
  EXPECT_EQ(list(matrix.compute()), (std::vector<double>{0, 0, 1, 1}));
}

TEST(F1, LeavesOutWhatItsOptionsSay) {
  F1 f1({}, {.classes = kPicky});
  f1.update(picky_scores(), picky_labels());
  EXPECT_EQ(list(f1.compute_per_class()), (std::vector<double>{0, 2.0 / 3}));
}

TEST(AUROC, LeavesOutWhatItsOptionsSay) {
  AUROC auroc({}, {.classes = {.ignore_index = -1, .ignore_nan = true}});
  auroc.update(reals({.1, kNan, .3, .2}), wholes({0, 0, 1, -1}));
  EXPECT_EQ(auroc.compute(), 1);
}

TEST(AUROC, WeighsClassesOnRequest) {
  // Areas: 1 for class 0 (one sample), 1/2 for class 1 (two), 1/2 for class 2.
  const at::Tensor scores =
      rows({.9, .2, .5, .1, .5, .5, .1, .1, .5, .1, .2, .5}, 3);
  const at::Tensor labels = wholes({0, 1, 1, 2});
  AUROC macro({}, {.num_classes = 3}),
      weighted({}, {.num_classes = 3, .average = ClassAverage::weighted});
  macro.update(scores, labels);
  weighted.update(scores, labels);
  const auto each = list(macro.compute_per_class());
  EXPECT_EQ(each[0], 1);
  EXPECT_EQ(each[1], 0.5);
  EXPECT_EQ(each[2], 0.5);
  EXPECT_NEAR(macro.compute(), 2.0 / 3, 1e-15);
  EXPECT_NEAR(weighted.compute(), (1 + 2 * 0.5 + 0.5) / 4, 1e-15);
}

TEST(Metrics, RefuseStatesOfOthers) {
  Mean mean;
  Sum sum;
  testing::expect_error<CheckpointError>(
      [&] { mean.load_state_dict(sum.state_dict()); }, "\"sum\"");
  F1 of_two, of_three({}, {.num_classes = 3});
  testing::expect_error<CheckpointError>(
      [&] { of_two.load_state_dict(of_three.state_dict()); }, "[3, 3]");
  AUROC exact, binned({}, {.num_bins = 4});
  testing::expect_error<CheckpointError>(
      [&] { exact.load_state_dict(binned.state_dict()); }, "auroc_binned");
}

}  // namespace metrics_test
}  // namespace accelerate
