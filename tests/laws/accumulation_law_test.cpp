// Any split of a batch into micro-batches and ranks gives the gradient of the
// full batch.
#include "laws/check.h"

#include <map>
#include <memory>

#include <accelerate/accelerate.h>

#include "support/rank_pool.h"

namespace accelerate {
namespace accumulation_law_test {

namespace F = torch::nn::functional;
using testing::expect_law;
using testing::RankPool;

torch::nn::Linear fixed_net() {
  torch::nn::Linear net(torch::nn::LinearOptions(3, 2));
  net->to(torch::kDouble);
  const torch::NoGradGuard no_grad;
  net->weight.copy_(
      torch::tensor({0.3, -0.2, 0.9, -0.5, 0.4, 0.1}, torch::kDouble)
          .view({2, 3}));
  net->bias.copy_(torch::tensor({0.2, -0.7}, torch::kDouble));
  return net;
}

struct TrainRank {
  Accelerator accelerator;
  torch::nn::Linear net;
  Model<torch::nn::LinearImpl> model;
};

using Key = std::tuple<int, int, bool>;  // ranks, window, sync_each_batch

RankPool<TrainRank>& pool_of(
    std::map<Key, std::unique_ptr<RankPool<TrainRank>>>& pools,
    Key key) {
  auto& pool = pools[key];
  if (!pool) {
    const auto [ranks, window, sync_each_batch] = key;
    pool = std::make_unique<RankPool<TrainRank>>(
        ranks,
        [window = window, each = sync_each_batch](const WorldOptions& world) {
          Accelerator accelerator(
              {.gradient_accumulation_steps = window,
               .gradient_accumulation = {.sync_each_batch = each},
               .world = world});
          torch::nn::Linear net = fixed_net();
          auto model = accelerator.prepare(net);
          return TrainRank{accelerator, net, model};
        });
  }
  return *pool;
}

TEST(AccumulationLaw, GivesTheGradientOfTheWholeBatch) {
  std::map<Key, std::unique_ptr<RankPool<TrainRank>>> pools;
  expect_law(2'000, [&] {
    const int ranks = *rc::gen::inRange(1, 4);
    const int window = *rc::gen::inRange(1, 5);
    const bool sync_each_batch = *rc::gen::arbitrary<bool>();
    const bool is_even = *rc::gen::arbitrary<bool>();
    const auto seed = *rc::gen::arbitrary<std::uint64_t>();
    // Items per micro-step and rank; equal numbers need no counting.
    std::vector<int> items(
        static_cast<std::size_t>(ranks * window), *rc::gen::inRange(1, 9));
    if (!is_even) {
      for (int& count : items)
        count = *rc::gen::weightedOneOf<int>(
            {{1, rc::gen::just(0)}, {4, rc::gen::inRange(1, 9)}});
    }
    std::int64_t total = 0;
    for (const int count : items) total += count;
    const at::Generator generator = at::detail::createCPUGenerator(seed);
    const auto x = torch::randn({total, 3}, generator, torch::kDouble);
    const auto y = torch::randint(0, 2, {total}, generator, torch::kLong);
    torch::nn::Linear reference = fixed_net();
    if (total > 0) {
      F::cross_entropy(reference(x), y).backward();
    } else {
      (reference(torch::zeros({1, 3}, torch::kDouble)) * 0).sum().backward();
    }
    std::vector<char> agrees(static_cast<std::size_t>(ranks), 0);
    pool_of(pools, {ranks, window, sync_each_batch}).run([&](TrainRank& rank) {
      const auto me =
          static_cast<std::size_t>(rank.accelerator.process_index());
      std::int64_t begin = 0;
      for (int m = 0; m < window; ++m) {
        const auto micro_step = rank.accelerator.accumulate(rank.model);
        for (std::size_t r = 0; r < static_cast<std::size_t>(ranks); ++r) {
          const std::int64_t count =
              items[static_cast<std::size_t>(m * ranks) + r];
          if (r == me) {
            // Adds a masked row; if it is the only row, the mean is NaN.
            const auto rows = torch::cat(
                {x.narrow(0, begin, count),
                 torch::ones({1, 3}, torch::kDouble)});
            const auto labels = torch::cat(
                {y.narrow(0, begin, count),
                 torch::full({1}, -100, torch::kLong)});
            BackwardOptions options;
            if (!is_even) options.num_items = count;
            rank.accelerator.backward(
                F::cross_entropy(rank.model(rows), labels), options);
          }
          begin += count;
        }
      }
      agrees[me] =
          torch::allclose(
              rank.net->weight.grad(), reference->weight.grad(), 1e-9, 1e-12) &&
          torch::allclose(
              rank.net->bias.grad(), reference->bias.grad(), 1e-9, 1e-12);
      rank.net->weight.mutable_grad().reset();
      rank.net->bias.mutable_grad().reset();
    });
    for (const char one : agrees) RC_ASSERT(one);
  });
}

}  // namespace accumulation_law_test
}  // namespace accelerate
