#include <accelerate/accelerate.h>
#include <accelerate/random.h>

#include "support/expect_error.h"
#include "support/run_on_ranks.h"

namespace accelerate {
namespace random_test {

using testing::expect_error;
using testing::run_in_worlds;

TEST(SetSeed, MakesRandomNumbersReproducible) {
  set_seed(7);
  const auto first = torch::rand({4});
  const auto second = torch::rand({4});
  set_seed(7);
  EXPECT_TRUE(torch::equal(torch::rand({4}), first));
  EXPECT_TRUE(torch::equal(torch::rand({4}), second));
  set_seed(8);
  EXPECT_FALSE(torch::equal(torch::rand({4}), first));
}

TEST(SetSeed, AddsTheRankIfAsked) {
  const World world({.rank = 0, .size = 1, .device = at::kCPU});
  set_seed(7, world, {.device_specific = true});
  const auto first = torch::rand({4});
  set_seed(7);
  EXPECT_TRUE(torch::equal(torch::rand({4}), first));
  expect_error<ConfigError>(
      [] { set_seed(7, {.device_specific = true}); }, "accelerator.world()");
  // All threads share the default generator, so ranks take turns.
  std::vector<torch::Tensor> of_ranks(2);
  run_in_worlds(2, [&](const World& ranks) {
    for (int turn = 0; turn < 2; ++turn) {
      if (turn == ranks.rank()) {
        set_seed(7, ranks, {.device_specific = true});
        of_ranks[static_cast<std::size_t>(turn)] = torch::rand({4});
      }
      ranks.group().barrier();
    }
  });
  EXPECT_TRUE(torch::equal(of_ranks[0], first));
  set_seed(8);
  EXPECT_TRUE(torch::equal(of_ranks[1], torch::rand({4})));
}

TEST(SetSeed, RefusesRandomAlgorithmsIfAsked) {
  set_seed(1, {.deterministic = true});
  EXPECT_TRUE(at::globalContext().deterministicAlgorithms());
  at::globalContext().setDeterministicAlgorithms(false, false);
}

TEST(SynchronizeRngStates, GivesAllRanksTheStateOfRankZero) {
  std::vector<torch::Tensor> drawn(3);
  run_in_worlds(3, [&](const World& world) {
    at::Generator generator = at::detail::createCPUGenerator(
        static_cast<std::uint64_t>(world.rank() + 40));
    synchronize_rng_state(world.group(), generator);
    drawn[static_cast<std::size_t>(world.rank())] = torch::rand({5}, generator);
    synchronize_rng_states(world, {RNGType::torch, RNGType::device});
  });
  EXPECT_TRUE(torch::equal(
      drawn[0], torch::rand({5}, at::detail::createCPUGenerator(40))));
  EXPECT_TRUE(torch::equal(drawn[1], drawn[0]));
  EXPECT_TRUE(torch::equal(drawn[2], drawn[0]));
}

}  // namespace random_test
}  // namespace accelerate
