#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/tool.h"

namespace accelerate {
namespace batch_search_test {

using ::testing::HasSubstr;
using testing::run_tool;
using testing::ToolResult;

void expect_all_shrink_together(const std::string& how) {
  const ToolResult result =
      run_tool({"launch", "--num_processes", "3", SEARCH_RANK, how});
  EXPECT_EQ(result.code, 0) << result.err;
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_THAT(
        result.out,
        HasSubstr("[" + std::to_string(rank) + "] tried 4096 512, mean 512\n"));
  }
}

TEST(BatchSearch, ShrinksReplicasIfOneCannotAllocateInABackward) {
  expect_all_shrink_together("replicated");
}

TEST(BatchSearch, ShrinksShardedRanksIfOneCannotAllocateInABackward) {
  expect_all_shrink_together("sharded");
}

}  // namespace batch_search_test
}  // namespace accelerate
