#include "parallel/shard/unshard/execution_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "parallel/shard/shard_unit.h"

namespace accelerate::detail {
namespace execution_order_test {

void pass(ExecutionOrder& order, const std::vector<std::size_t>& units) {
  order.begin();
  for (const std::size_t unit : units) order.touch(unit);
  order.end();
}

TEST(ExecutionOrder, KnowsNothingBeforeTheFirstPass) {
  ExecutionOrder order;
  order.begin();
  order.touch(3);
  EXPECT_FALSE(order.is_known());
  EXPECT_TRUE(order.next(1).empty());
  EXPECT_FALSE(order.is_due_soon(3, 2));
}

TEST(ExecutionOrder, SaysWhatComesNext) {
  ExecutionOrder order;
  pass(order, {0, 0, 1, 1, 2, 0});
  order.begin();
  EXPECT_EQ(order.next(1).front(), 0u);
  order.touch(0);
  EXPECT_EQ(order.next(1).front(), 1u);
  EXPECT_TRUE(order.is_due_soon(2, 2));
  EXPECT_FALSE(order.is_due_soon(2, 1));
  EXPECT_THAT(order.next(2), ::testing::ElementsAre(1, 2));
  EXPECT_THAT(order.next(9), ::testing::ElementsAre(1, 2, 0));
  EXPECT_FALSE(order.is_due_soon(0, 2)) << "it comes, but not soon";
  order.touch(1);
  EXPECT_TRUE(order.is_due_soon(0, 2));
  order.touch(2);
  order.touch(0);
  EXPECT_TRUE(order.next(1).empty());
}

TEST(ExecutionOrder, StopsAtAnotherOrderAndLearnsIt) {
  ExecutionOrder order;
  pass(order, {0, 1, 2});
  order.begin();
  order.touch(0);
  order.touch(2);
  EXPECT_FALSE(order.is_known());
  EXPECT_TRUE(order.next(1).empty());
  order.end();
  order.begin();
  order.touch(0);
  EXPECT_EQ(order.next(1).front(), 2u);
}

TEST(ExecutionOrder, KeepsWhatItKnowsOverAnEmptyPass) {
  ExecutionOrder order;
  pass(order, {4, 5});
  pass(order, {});
  order.begin();
  EXPECT_EQ(order.next(1).front(), 4u);
}

TEST(RowBegins, DivideAllRowsIntoShardsThatDifferByAtMostOne) {
  EXPECT_TRUE(rc::check([] {
    const auto rows = *rc::gen::inRange<std::int64_t>(0, 1000);
    const auto ranks = *rc::gen::inRange(1, 40);
    const auto begins = row_begins(rows, ranks);
    RC_ASSERT(begins.size() == static_cast<std::size_t>(ranks) + 1);
    RC_ASSERT(begins.front() == 0);
    RC_ASSERT(begins.back() == rows);
    for (int rank = 0; rank < ranks; ++rank) {
      const auto r = static_cast<std::size_t>(rank);
      const std::int64_t num_rows = begins[r + 1] - begins[r];
      RC_ASSERT(num_rows == rows / ranks || num_rows == rows / ranks + 1);
    }
  }));
}

}  // namespace execution_order_test
}  // namespace accelerate::detail
