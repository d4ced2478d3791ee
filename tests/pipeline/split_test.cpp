#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include <accelerate/error.h>

#include "pipeline/split.h"
#include "support/expect_error.h"

namespace accelerate::detail {
namespace split_test {

using ::testing::ElementsAre;
using testing::expect_error;

TEST(PipelineSplit, BalancesTheMostExpensiveStage) {
  const std::vector<double> costs{4, 1, 1, 1, 1, 4, 4};
  EXPECT_THAT(balanced_stages(costs, 1), ElementsAre(0));
  EXPECT_THAT(balanced_stages(costs, 2), ElementsAre(0, 5));
  EXPECT_THAT(balanced_stages(costs, 3), ElementsAre(0, 3, 6));
  EXPECT_THAT(balanced_stages(costs, 7), ElementsAre(0, 1, 2, 3, 4, 5, 6));
}

// Breaks ties between divisions with the same most expensive stage.
TEST(PipelineSplit, MakesTheOtherStagesEqual) {
  EXPECT_THAT(
      balanced_stages(std::vector<double>(10, 1), 4), ElementsAre(0, 2, 4, 7));
  EXPECT_THAT(
      balanced_stages(std::vector<double>{9, 1, 1, 1, 1}, 3),
      ElementsAre(0, 1, 3));
  EXPECT_THAT(
      balanced_stages(std::vector<double>{0, 0, 0}, 3), ElementsAre(0, 1, 2));
}

TEST(PipelineSplit, TakesSplitPoints) {
  const std::vector<std::string> names{"a", "b", "c", "d"};
  EXPECT_THAT(divide_layers(names, {"b", "d"}, {}, 3), ElementsAre(0, 1, 3));
  EXPECT_THAT(divide_layers(names, {}, {1, 1, 1, 3}, 2), ElementsAre(0, 3));
}

TEST(PipelineSplit, RefusesWhatCannotBeDivided) {
  const std::vector<std::string> names{"a", "b", "c"};
  const auto refused = [&](const std::vector<std::string>& points,
                           const std::vector<double>& costs,
                           int num_stages,
                           const std::string& why) {
    expect_error<ConfigError>(
        [&] { divide_layers(names, points, costs, num_stages); }, why);
  };
  refused({}, {1, 1, 1}, 4, "3 layers cannot be divided into 4 stages");
  refused({"b"}, {}, 3, "1 split points make 2 stages, but there are 3");
  refused(
      {"x"},
      {},
      2,
      "split point \"x\" must be a layer, but the layers are a, b, c");
  refused({"a"}, {}, 2, "split point \"a\" is the first layer");
  refused(
      {"c", "b"}, {}, 3, "split point \"b\" does not come after the others");
  refused({}, {1, 2}, 2, "there are 2 for 3 layers");
  refused({}, {1, -2, 1}, 2, "the cost of layer \"b\" is -2");
  refused(
      {},
      {1, std::numeric_limits<double>::quiet_NaN(), 1},
      2,
      "the cost of layer \"b\" is nan");
}

}  // namespace split_test
}  // namespace accelerate::detail
