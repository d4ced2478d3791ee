#include <accelerate/tracker.h>

#include <gtest/gtest.h>

namespace accelerate {
namespace {

TEST(TrackedValue, KeepsTheOrderOfNames) {
  const TrackedValues values{{"b", 2}, {"a", 1.5}};
  EXPECT_EQ(values[0].name, "b");
  EXPECT_EQ(values[1].value, TrackedValue(1.5));
}

}  // namespace
}  // namespace accelerate
