#include "comm/agreement/store_group.h"

#include <accelerate/error.h>

#include "base/text/text.h"
#include "support/expect_error.h"
#include "support/run_on_ranks.h"

namespace accelerate::detail {
namespace store_group_test {

using ::testing::AllOf;
using testing::expect_error;
using ::testing::HasSubstr;

TEST(StoreGroup, GathersAnyStrings) {
  testing::run_in_worlds(3, [](const World& world) {
    StoreGroup group(world, "test", {0, 1, 2});
    const std::vector<std::string> all{"", "1:2", std::string("\0:", 2)};
    for (int i = 0; i < 3; ++i) {
      EXPECT_EQ(
          group.all_gather(all[static_cast<std::size_t>(world.rank())], "call"),
          all);
    }
  });
}

TEST(StoreGroup, NamesTheKeyThatHoldsJunk) {
  for (const std::string junk :
       {"junk",
        "4",
        ":",
        "9:ab1:c",
        "1:a",
        "1:a1:b1:c",
        "1:a-1:b",
        "1:a99999999999999999999:b",
        "1:a1:bx",
        ""}) {
    testing::run_in_worlds(2, [&](const World& world) {
      StoreGroup group(world, "test", {0, 1});
      if (world.rank() == 0) {
        world.store().set("store_group/test/1/all", junk);
        world.store().set("written", "1");
        return;
      }
      static_cast<void>(world.store().get("written"));
      expect_error<DistributedError>(
          [&] { group.all_gather("value", "save_state()"); },
          "the store's key \"store_group/test/1/all\" holds " +
              std::to_string(junk.size()) +
              " bytes that rank 0 did not write in save_state()");
    });
  }
}

// As save_state() on the main process only does. Both calls are in the errors
// of both ranks.
TEST(CircularWait, EndsWithBothCalls) {
  for (const int waiting_rank : {0, 1}) {
    testing::run_in_worlds(2, [&](const World& world) {
      StoreGroup group(world, "test", {0, 1});
      group.end_circular_waits();
      std::string text;
      try {
        if (world.rank() == waiting_rank) {
          static_cast<void>(group.all_gather("", "save_state"));
        } else {
          world.wait_for_everyone();
        }
      } catch (const DistributedError& error) {
        text = error.what();
      }
      EXPECT_THAT(
          text,
          AllOf(
              HasSubstr("ranks 0 and 1 wait for each other"),
              HasSubstr(format("rank {}: save_state", waiting_rank)),
              HasSubstr(format(
                  "rank {}: barrier number 1 of group \"world\" in "
                  "wait_for_everyone()",
                  1 - waiting_rank))));
    });
  }
}

}  // namespace store_group_test
}  // namespace accelerate::detail
