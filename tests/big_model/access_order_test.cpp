#include <gmock/gmock.h>

#include <rapidcheck.h>

#include <vector>

#include "big_model/tiers/keeper/access_order.h"

namespace accelerate::access_order_test {

using detail::AccessOrder;
using ::testing::ElementsAre;

std::vector<std::size_t> next(const AccessOrder& order, std::size_t count) {
  std::vector<std::size_t> units;
  order.upcoming([&](std::size_t unit) {
    if (units.size() == count) return false;
    units.push_back(unit);
    return true;
  });
  return units;
}

TEST(AccessOrder, ExpectsTheOrderOfTheModelAtFirst) {
  AccessOrder order(4);
  EXPECT_TRUE(next(order, 3).empty());
  order.note(0);
  EXPECT_THAT(next(order, 5), ElementsAre(1, 2, 3, 0, 1));
  order.note(2);
  EXPECT_THAT(next(order, 2), ElementsAre(3, 0));
}

TEST(AccessOrder, LearnsAForwardAndGoesOnWithTheNextOne) {
  AccessOrder order(4);
  for (const std::size_t unit : {2, 0, 3, 1, 2, 0}) order.note(unit);
  EXPECT_THAT(next(order, 6), ElementsAre(3, 1, 2, 0, 3, 1));
}

TEST(AccessOrder, TellsUsesOfAUnitApartByWhatCameBefore) {
  AccessOrder order(4);
  // Unit 1 is used twice in a forward, after 0 and after 2.
  for (int i = 0; i < 2; ++i) {
    for (const std::size_t unit : {0, 1, 2, 1, 3}) order.note(unit);
  }
  order.note(0);
  order.note(1);
  EXPECT_THAT(next(order, 4), ElementsAre(2, 1, 3, 0));
  order.note(2);
  order.note(1);
  EXPECT_THAT(next(order, 2), ElementsAre(3, 0));
}

TEST(AccessOrder, FollowsAForwardThatTakesAnotherPath) {
  AccessOrder order(5);
  for (int i = 0; i < 2; ++i) {
    for (const std::size_t unit : {0, 1, 2, 3}) order.note(unit);
  }
  const std::int64_t before = order.num_surprises();
  for (const std::size_t unit : {0, 4, 3}) order.note(unit);
  EXPECT_GT(order.num_surprises(), before);
  order.note(0);
  EXPECT_THAT(next(order, 2), ElementsAre(4, 3));
}

TEST(AccessOrder, CountsTheSameUnitAgainOnce) {
  AccessOrder order(3);
  for (const std::size_t unit : {0, 0, 0, 1, 1, 2, 0, 0, 1}) order.note(unit);
  EXPECT_THAT(next(order, 2), ElementsAre(2, 0));
}

TEST(AccessOrder, HasNoSurprisesOnceAnyOrderHasRepeated) {
  EXPECT_TRUE(rc::check([] {
    const auto num_units = *rc::gen::inRange<std::size_t>(2, 8);
    // Each unit occurs once, so that pairs identify the position in a forward.
    auto forward = *rc::gen::exec([num_units] {
      std::vector<std::size_t> units(num_units);
      for (std::size_t i = 0; i < num_units; ++i) units[i] = i;
      for (std::size_t i = num_units - 1; i > 0; --i)
        std::swap(units[i], units[*rc::gen::inRange<std::size_t>(0, i + 1)]);
      return units;
    });
    AccessOrder order(num_units);
    for (int i = 0; i < 2; ++i) {
      for (const std::size_t unit : forward) order.note(unit);
    }
    order.note(forward.front());
    const std::int64_t before = order.num_surprises();
    for (int i = 0; i < 1000; ++i) {
      for (const std::size_t unit : forward) order.note(unit);
    }
    RC_ASSERT(order.num_surprises() == before);
  }));
}

}  // namespace accelerate::access_order_test
