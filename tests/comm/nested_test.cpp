#include <accelerate/accelerate.h>

#include "support/run_on_ranks.h"

namespace accelerate {
namespace {

using testing::run_in_worlds;

TEST(Reduce, JoinsTheValuesOfAllRanks) {
  run_in_worlds(3, [](const World& world) {
    const double rank = world.rank();
    const std::map<std::string, torch::Tensor> mine{
        {"a", torch::tensor({rank, -rank})},
        {"b", torch::full({}, 1.0 + rank)}};
    const auto joined = [&](Reduction reduction, double scale = 1) {
      return reduce(mine, world.group(), reduction, scale);
    };
    EXPECT_TRUE(torch::equal(
        joined(Reduction::sum).at("a"), torch::tensor({3.0, -3.0})));
    EXPECT_TRUE(torch::equal(
        joined(Reduction::mean).at("a"), torch::tensor({1.0, -1.0})));
    EXPECT_TRUE(torch::equal(
        joined(Reduction::max).at("a"), torch::tensor({2.0, 0.0})));
    EXPECT_TRUE(torch::equal(
        joined(Reduction::min).at("a"), torch::tensor({0.0, -2.0})));
    EXPECT_TRUE(torch::equal(joined(Reduction::none).at("a"), mine.at("a")));
    EXPECT_EQ(joined(Reduction::sum, 0.5).at("b").item<double>(), 3);
    EXPECT_EQ(mine.at("b").item<double>(), 1 + rank);
  });
}

}  // namespace
}  // namespace accelerate
