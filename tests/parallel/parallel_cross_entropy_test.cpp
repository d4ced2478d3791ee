// The loss of logits that are split over ranks, and their gradient, equal those
// of cross_entropy on the full logits.
#include <accelerate/parallel_cross_entropy.h>

#include <accelerate/error.h>

#include "comm/autograd/region.h"
#include "support/expect_error.h"
#include "support/run_on_ranks.h"

namespace accelerate {
namespace parallel_cross_entropy_test {

using testing::expect_error;
using testing::run_in_worlds;
using torch::Tensor;
namespace F = torch::nn::functional;

struct Case {
  int num_ranks = 2;
  std::vector<std::int64_t> shape = {4, 10};
  double scale = 1;
  bool ignores = false;
};

void expect_cross_entropy(const Case& given) {
  Tensor logits =
      torch::sin(
          torch::arange(c10::multiply_integers(given.shape), torch::kDouble) *
          0.7)
          .mul(given.scale)
          .view(given.shape)
          .requires_grad_();
  const std::int64_t num_classes = given.shape.back();
  const std::vector<std::int64_t> of_targets(
      given.shape.begin(), given.shape.end() - 1);
  Tensor targets = (torch::arange(c10::multiply_integers(of_targets)) * 3)
                       .remainder(num_classes)
                       .view(of_targets);
  if (given.ignores) targets.view(-1)[1] = -100;
  const Tensor expected =
      F::cross_entropy(logits.view({-1, num_classes}), targets.view(-1));
  (expected * 3).backward();
  run_in_worlds(given.num_ranks, [&](const World& world) {
    const auto begins = detail::slice_begins(num_classes, world.size());
    const auto rank = static_cast<std::size_t>(world.rank());
    const auto own = [&](const Tensor& tensor) {
      return tensor.narrow(-1, begins[rank], begins[rank + 1] - begins[rank]);
    };
    const Tensor mine = own(logits.detach()).clone().requires_grad_();
    const Tensor loss = parallel_cross_entropy(mine, targets, world.group());
    EXPECT_EQ(loss.dim(), 0);
    EXPECT_TRUE(torch::allclose(loss, expected, 1e-12, 1e-12));
    (loss * 3).backward();
    EXPECT_TRUE(torch::allclose(mine.grad(), own(logits.grad()), 1e-12, 1e-12));
  });
}

TEST(ParallelCrossEntropy, IsThatOfAllClasses) {
  expect_cross_entropy({});
  expect_cross_entropy({.num_ranks = 3});
  expect_cross_entropy({.num_ranks = 3, .shape = {2, 3, 7}});
  expect_cross_entropy({.num_ranks = 1});
}

TEST(ParallelCrossEntropy, LeavesIgnoredTargetsOut) {
  expect_cross_entropy({.ignores = true});
}

TEST(ParallelCrossEntropy, TakesLargeLogits) {
  expect_cross_entropy({.scale = 1e4});
}

// More ranks than classes.
TEST(ParallelCrossEntropy, TakesRanksWithoutClasses) {
  expect_cross_entropy({.num_ranks = 3, .shape = {4, 2}});
}

TEST(ParallelCrossEntropy, SumsHalfPrecisionInFp32) {
  run_in_worlds(2, [](const World& world) {
    const Tensor logits =
        torch::ones({2, 3}, torch::kBFloat16).requires_grad_();
    const Tensor loss = parallel_cross_entropy(
        logits, torch::zeros({2}, torch::kLong), world.group());
    EXPECT_EQ(loss.scalar_type(), torch::kFloat);
    EXPECT_NEAR(loss.item<double>(), std::log(6), 1e-6);
    loss.backward();
    EXPECT_EQ(logits.grad().scalar_type(), torch::kBFloat16);
  });
}

TEST(ParallelCrossEntropy, RefusesWhatDoesNotFit) {
  const auto given = [](const Tensor& logits, const Tensor& targets) {
    return [=] {
      run_in_worlds(2, [&](const World& world) {
        (void)parallel_cross_entropy(logits, targets, world.group());
      });
    };
  };
  expect_error<ConfigError>(
      given(torch::ones({2, 3}), torch::zeros({3}, torch::kLong)),
      "of shape [2, 3] with Long targets of shape [3]");
  expect_error<ConfigError>(
      given(torch::ones({2, 3}), torch::full({2}, 6)),
      "must be classes, but one is 6; classes count from 0 to 5");
}

}  // namespace parallel_cross_entropy_test
}  // namespace accelerate
