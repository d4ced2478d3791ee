#include <accelerate/metrics.h>

#include <cmath>
#include <memory>
#include <random>
#include <vector>

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <accelerate/world.h>

#include "support/rank_pool.h"

// A metric over ranks equals the metric of one process, for any number of
// ranks, batch sizes and repeated samples, and after resuming on another number
// of ranks.

namespace accelerate {
namespace metrics_law_test {

using Random = std::mt19937_64;
using Pool = testing::RankPool<World>;
using Numbers = std::vector<double>;

constexpr int kMostRanks = 4;
constexpr std::int64_t kNumClasses = 4;
constexpr int kNumTests = 10;
constexpr int kCasesOfTest = 1000;

std::int64_t number(Random& random, std::int64_t low, std::int64_t high) {
  return std::uniform_int_distribution<std::int64_t>(low, high)(random);
}

bool coin(Random& random) { return number(random, 0, 1) == 1; }

// Multiples of `unit`, so that all sums in this test are exact.
at::Tensor multiples(
    Random& random,
    at::IntArrayRef shape,
    double unit,
    std::int64_t low,
    std::int64_t high) {
  at::Tensor tensor = at::empty(shape, at::kDouble);
  double* values = tensor.mutable_data_ptr<double>();
  for (std::int64_t i = 0; i < tensor.numel(); ++i)
    values[i] = unit * static_cast<double>(number(random, low, high));
  return tensor;
}

struct Samples {
  at::Tensor scores;   // [N, classes]
  at::Tensor labels;   // [N], some of which are ignored
  at::Tensor weights;  // undefined, or [N]
  at::Tensor mask;

  [[nodiscard]] Samples rows(const at::Tensor& indices) const {
    const auto taken = [&](const at::Tensor& tensor) {
      return tensor.defined() ? tensor.index_select(0, indices) : tensor;
    };
    return {taken(scores), taken(labels), taken(weights), taken(mask)};
  }
  [[nodiscard]] MetricSamples counted() const {
    return {.weights = weights, .mask = mask};
  }
};

Samples any_samples(Random& random, std::int64_t size) {
  const at::ScalarType dtypes[] = {at::kFloat, at::kDouble, at::kBFloat16};
  Samples samples;
  samples.scores = multiples(random, {size, kNumClasses}, 0.125, 0, 8)
                       .to(dtypes[number(random, 0, 2)]);
  samples.labels =
      multiples(random, {size}, 1, 0, kNumClasses - 1).to(at::kLong);
  if (coin(random)) {
    samples.labels = at::where(
        multiples(random, {size}, 1, 0, 4) == 0,
        at::full({}, -100, at::kLong),
        samples.labels);
  }
  if (coin(random)) samples.weights = multiples(random, {size}, 0.25, 0, 8);
  if (coin(random)) samples.mask = multiples(random, {size}, 1, 0, 3) > 0;
  return samples;
}

struct Round {
  std::vector<at::Tensor> indices;  // per rank
  std::int64_t remainder = 0;
};

// Batches of equal sizes with repeats in the last round, or of any size.
std::vector<Round> any_rounds(
    Random& random,
    std::int64_t begin,
    std::int64_t end,
    int num_ranks) {
  std::vector<Round> rounds;
  const bool is_even = coin(random);
  const std::int64_t rows = number(random, 1, 5);
  for (std::int64_t next = begin; next < end;) {
    Round round;
    const std::int64_t left = end - next;
    if (is_even && left < rows * num_ranks) round.remainder = left;
    for (int rank = 0; rank < num_ranks; ++rank) {
      std::vector<std::int64_t> own;
      const std::int64_t size = is_even ? rows : number(random, 0, 5);
      for (std::int64_t i = 0; i < size && (is_even || next < end); ++i) {
        own.push_back(next < end ? next : begin + (next - end) % (end - begin));
        ++next;
      }
      round.indices.push_back(at::tensor(own, at::kLong));
    }
    rounds.push_back(std::move(round));
  }
  return rounds;
}

template <class Metric>
struct Law {
  std::function<Metric(MetricRanks)> make;
  std::function<void(Metric&, const Samples&)> update;
  std::function<Numbers(const Metric&)> answer;
  double tolerance = 0;
};

class Pools {
 public:
  Pool& operator[](int num_ranks) {
    auto& pool = pools_[static_cast<std::size_t>(num_ranks)];
    if (!pool) {
      pool = std::make_unique<Pool>(num_ranks, [](const WorldOptions& options) {
        return World(options);
      });
    }
    return *pool;
  }

 private:
  std::unique_ptr<Pool> pools_[kMostRanks + 1];
};

void expect_equal(
    const Numbers& found,
    const Numbers& expected,
    double tolerance) {
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (std::isnan(expected[i])) {
      EXPECT_TRUE(std::isnan(found[i])) << found[i];
    } else {
      EXPECT_NEAR(found[i], expected[i], tolerance * std::abs(expected[i]));
    }
  }
}

template <class Metric>
void check(Pools& pools, Random& random, const Law<Metric>& law) {
  const std::int64_t size = number(random, 0, 40);
  const Samples samples = any_samples(random, size);
  Metric alone = law.make({});
  law.update(alone, samples);
  const Numbers expected = law.answer(alone);

  // The first samples on some ranks, then possibly the rest on others.
  const std::int64_t middle = coin(random) ? size : number(random, 0, size);
  StateDict saved;
  bool is_resumed = false;
  for (const auto& [begin, end] :
       std::vector<std::pair<std::int64_t, std::int64_t>>{
           {0, middle}, {middle, size}}) {
    if (is_resumed && begin == end) break;
    const int num_ranks = static_cast<int>(number(random, 1, kMostRanks));
    const auto rounds = any_rounds(random, begin, end, num_ranks);
    std::vector<Numbers> found(static_cast<std::size_t>(num_ranks));
    std::vector<StateDict> states(found.size());
    const bool is_last = end == size;
    pools[num_ranks].run([&](World& world) {
      const auto rank = static_cast<std::size_t>(world.rank());
      std::int64_t remainder = 0;
      Metric metric = law.make(
          {.group = world.group(), .remainder = [&] { return remainder; }});
      if (is_resumed) metric.load_state_dict(saved);
      for (const Round& round : rounds) {
        remainder = round.remainder;
        law.update(metric, samples.rows(round.indices[rank]));
      }
      if (is_last) {
        found[rank] = law.answer(metric);
      } else {
        states[rank] = metric.state_dict();
      }
    });
    if (end == size) {
      for (const Numbers& numbers : found)
        expect_equal(numbers, expected, law.tolerance);
      break;
    }
    saved = states.back();
    is_resumed = true;
  }
}

Numbers numbers_of(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.to(at::kDouble).reshape(-1);
  const double* begin = flat.const_data_ptr<double>();
  return {begin, begin + flat.numel()};
}

template <class Metric>
Numbers computed(const Metric& metric) {
  return {metric.compute()};
}

template <class Metric>
void update_classes(Metric& metric, const Samples& samples) {
  metric.update(samples.scores, samples.labels, samples.counted());
}

void check_mean(Pools& pools, Random& random) {
  check<Mean>(
      pools,
      random,
      {[](MetricRanks ranks) { return Mean(std::move(ranks)); },
       [](Mean& metric, const Samples& samples) {
         metric.update(samples.scores, samples.counted());
       },
       computed<Mean>});
}

void check_sum(Pools& pools, Random& random) {
  check<Sum>(
      pools,
      random,
      {[](MetricRanks ranks) { return Sum(std::move(ranks)); },
       [](Sum& metric, const Samples& samples) {
         metric.update(samples.scores.select(1, 0), samples.counted());
       },
       computed<Sum>});
}

void check_accuracy(Pools& pools, Random& random) {
  const std::int64_t top_k = number(random, 1, kNumClasses);
  check<Accuracy>(
      pools,
      random,
      {[=](MetricRanks ranks) {
         return Accuracy(std::move(ranks), {.top_k = top_k});
       },
       update_classes<Accuracy>,
       computed<Accuracy>});
}

void check_perplexity(Pools& pools, Random& random) {
  check<Perplexity>(
      pools,
      random,
      {[](MetricRanks ranks) { return Perplexity(std::move(ranks)); },
       [](Perplexity& metric, const Samples& samples) {
         metric.update(
             samples.scores.to(at::kDouble), samples.labels, samples.counted());
       },
       computed<Perplexity>,
       1e-12});
}

void check_confusion_matrix(Pools& pools, Random& random) {
  check<ConfusionMatrix>(
      pools,
      random,
      {[](MetricRanks ranks) {
         return ConfusionMatrix(std::move(ranks), {.num_classes = kNumClasses});
       },
       [](ConfusionMatrix& metric, const Samples& samples) {
         metric.update(samples.scores, samples.labels, {.mask = samples.mask});
       },
       [](const ConfusionMatrix& metric) {
         return numbers_of(metric.compute());
       }});
}

void check_f1(Pools& pools, Random& random) {
  const auto average = static_cast<ClassAverage>(number(random, 0, 2));
  check<F1>(
      pools,
      random,
      {[=](MetricRanks ranks) {
         return F1(
             std::move(ranks),
             {.num_classes = kNumClasses, .average = average});
       },
       update_classes<F1>,
       [](const F1& metric) {
         Numbers numbers = numbers_of(metric.compute_per_class());
         numbers.push_back(metric.compute());
         return numbers;
       }});
}

void check_auroc(Pools& pools, Random& random) {
  const AUROCOptions options{
      .num_classes = kNumClasses,
      .average = coin(random) ? ClassAverage::macro : ClassAverage::weighted,
      .num_bins = coin(random) ? 0 : number(random, 1, 16)};
  check<AUROC>(
      pools,
      random,
      {[=](MetricRanks ranks) { return AUROC(std::move(ranks), options); },
       update_classes<AUROC>,
       [](const AUROC& metric) {
         Numbers numbers = numbers_of(metric.compute_per_class());
         numbers.push_back(metric.compute());
         return numbers;
       }});
}

class MetricLaw : public ::testing::TestWithParam<int> {};

TEST_P(MetricLaw, IsThatOfOneProcess) {
  using Check = void (*)(Pools&, Random&);
  constexpr Check kChecks[] = {
      check_mean,
      check_sum,
      check_accuracy,
      check_perplexity,
      check_confusion_matrix,
      check_f1,
      check_auroc};
  Pools pools;
  for (int i = 0; i < kCasesOfTest; ++i) {
    const auto seed = static_cast<std::uint64_t>(GetParam()) * kCasesOfTest +
        static_cast<std::uint64_t>(i);
    SCOPED_TRACE(seed);
    Random random(seed);
    kChecks[seed % std::size(kChecks)](pools, random);
    if (HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, MetricLaw, ::testing::Range(0, kNumTests));

}  // namespace metrics_law_test
}  // namespace accelerate
