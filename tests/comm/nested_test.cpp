#include <accelerate/accelerate.h>

#include "support/expect_error.h"
#include "support/run_on_ranks.h"

namespace accelerate {
namespace nested_test {

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
      "integers of a tensor of Float");
}

}  // namespace nested_test
}  // namespace accelerate
