#include "base/require.h"

#include <gtest/gtest.h>

#include "support/expect_error.h"

namespace accelerate::detail {
namespace require_test {

using testing::expect_error;

TEST(Require, ReturnsValuesLargeEnough) {
  EXPECT_EQ(require_at_least("train", "steps", 1, 1), 1);
  EXPECT_EQ(require_at_least("train", "ratio", 0.5, 0), 0.5);
}

TEST(Require, NamesValuesTooSmall) {
  expect_error<ConfigError>(
      [] { require_at_least("train", "local_sgd_steps", 0, 1); },
      "[train] local_sgd_steps must be at least 1, but is 0");
  expect_error<ConfigError>(
      [] { require_at_least("optim", "lr", -0.5, 0); },
      "[optim] lr must be at least 0, but is -0.5");
}

}  // namespace require_test
}  // namespace accelerate::detail
