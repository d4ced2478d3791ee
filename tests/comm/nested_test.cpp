#include <accelerate/accelerate.h>

#include "support/expect_error.h"
#include "support/run_on_ranks.h"

namespace accelerate {
namespace nested_test {

using testing::expect_error;
using testing::run_in_worlds;

TEST(Reduce, JoinsTheValuesOfAllRanks) {
  run_in_worlds(3, [](const World& world) {
    const double rank = world.rank();
    const std::map<std::string, torch::Tensor> mine{
        {"a", torch::tensor({rank, -rank})},
        {"b", torch::full({}, 1.0 + rank)}};
    const auto joined = [&](std::optional<ReduceOp> op, double scale = 1) {
      return reduce(mine, world.group(), op, scale);
    };
    EXPECT_TRUE(torch::equal(
        joined(ReduceOp::sum).at("a"), torch::tensor({3.0, -3.0})));
    EXPECT_TRUE(torch::equal(
        joined(ReduceOp::mean).at("a"), torch::tensor({1.0, -1.0})));
    EXPECT_TRUE(
        torch::equal(joined(ReduceOp::max).at("a"), torch::tensor({2.0, 0.0})));
    EXPECT_TRUE(torch::equal(
        joined(ReduceOp::min).at("a"), torch::tensor({0.0, -2.0})));
    EXPECT_TRUE(torch::equal(joined(std::nullopt).at("a"), mine.at("a")));
    EXPECT_EQ(joined(ReduceOp::sum, 0.5).at("b").item<double>(), 3);
    EXPECT_EQ(mine.at("b").item<double>(), 1 + rank);
  });
}

TEST(Reduce, TakesTheMeanUnlessToldOtherwise) {
  testing::run_on_ranks(2, [](const WorldOptions& world) {
    const Accelerator accelerator({.world = world});
    const double rank = accelerator.process_index();
    const torch::Tensor mine = torch::full({2}, 1 + 4 * rank);
    EXPECT_TRUE(torch::equal(
        reduce(mine, accelerator.world().group()), torch::full({2}, 3.0)));
    EXPECT_TRUE(torch::equal(accelerator.reduce(mine), torch::full({2}, 6.0)));
  });
}

TEST(Listify, KeepsEveryDigitOrRefuses) {
  const std::int64_t odd = (std::int64_t{1} << 53) + 1;
  const std::vector<torch::Tensor> ids{
      torch::tensor({odd, -odd}), torch::tensor({true, false})};
  EXPECT_EQ(
      listify<std::int64_t>(ids), (std::vector<std::int64_t>{odd, -odd, 1, 0}));
  testing::expect_error<ConfigError>(
      [&] { listify(ids); },
      "would round 9007199254740993 to a double; ask for integers");
  EXPECT_EQ(
      listify(torch::tensor({odd - 1, 1 - odd})),
      (std::vector<double>{0x1p53, -0x1p53}));
  EXPECT_EQ(
      listify(std::pair{
          torch::tensor({{1.5, 2.0}, {3.0, 4.0}}),
          torch::tensor({7}, torch::kByte)}),
      (std::vector<double>{1.5, 2, 3, 4, 7}));
  testing::expect_error<ConfigError>(
      [&] { listify<std::int64_t>(torch::tensor({1.5F})); },
      "integers for a tensor of Float");
}

// Calls `body` on three ranks, each of which must throw and be able to
// continue.
void expect_refusal(
    const std::function<void(int rank, const Group&)>& body,
    const std::string& text) {
  run_in_worlds(3, [&](const World& world) {
    expect_error<DistributedError>(
        [&] { body(world.rank(), world.group()); }, text);
    EXPECT_EQ(
        reduce(torch::ones({1}), world.group(), ReduceOp::sum).item<float>(),
        world.size());
  });
}

TEST(NestedCollectives, RefuseValuesThatDifferBetweenRanks) {
  expect_refusal(
      [](int rank, const Group& group) {
        reduce(
            torch::ones({2}, rank == 1 ? at::kLong : at::kFloat),
            group,
            ReduceOp::sum);
      },
      "rank 1: sum of Long [2]");
  expect_refusal(
      [](int rank, const Group& group) {
        reduce(torch::ones({2 + rank}), group, ReduceOp::sum);
      },
      "rank 0: sum of Float [2]\n  rank 1: sum of Float [3]");
  expect_refusal(
      [](int rank, const Group& group) {
        reduce(
            torch::ones({2}), group, rank == 2 ? ReduceOp::max : ReduceOp::sum);
      },
      "rank 2: max of Float [2]");
  expect_refusal(
      [](int rank, const Group& group) {
        const std::vector<torch::Tensor> values(
            static_cast<std::size_t>(rank + 1), torch::ones({1}));
        reduce(values, group, ReduceOp::sum);
      },
      "rank 1: sum of Float [1], Float [1]");
  expect_refusal(
      [](int rank, const Group& group) {
        broadcast(torch::ones({rank == 0 ? 3 : 4}), group);
      },
      "use broadcast_object:\n  rank 0: Float [3] from 0");
  expect_refusal(
      [](int rank, const Group& group) {
        gather(torch::ones({1, 2 + rank}), group);
      },
      "pad_across_processes first, or gather_object for other values:\n  rank "
      "0: Float [rows, 2]\n  rank 1: Float [rows, 3]");
  expect_refusal(
      [](int rank, const Group& group) {
        gather(torch::ones({1}, rank == 2 ? at::kInt : at::kLong), group);
      },
      "rank 2: Int [rows]");
  expect_refusal(
      [](int rank, const Group& group) {
        pad_across_processes(
            rank == 0 ? torch::ones({2}) : torch::ones({2, 2}), group);
      },
      "rank 0: 1 dimensions");
}

TEST(NestedCollectives, GatherDifferentNumbersOfRows) {
  run_in_worlds(3, [](const World& world) {
    const auto rows = torch::full({world.rank(), 2}, world.rank());
    EXPECT_EQ(gather(rows, world.group()).size(0), 3);
    const auto number = torch::full({}, world.rank());
    EXPECT_TRUE(
        torch::equal(gather(number, world.group()), torch::tensor({0, 1, 2})));
  });
}

TEST(AllGatherUneven, RefusesDtypesThatDiffer) {
  run_in_worlds(2, [](const World& world) {
    expect_error<DistributedError>(
        [&] {
          static_cast<void>(world.group().all_gather_uneven(
              torch::ones({2}, world.rank() == 0 ? at::kLong : at::kFloat)));
        },
        world.rank() == 0 ? "Long on this rank and Float on rank 1"
                          : "Float on this rank and Long on rank 0");
  });
}

}  // namespace nested_test
}  // namespace accelerate
