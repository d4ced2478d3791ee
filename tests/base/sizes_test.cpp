#include "base/sizes.h"

#include <gtest/gtest.h>

#include <accelerate/error.h>

#include "support/expect_error.h"

namespace accelerate::detail {
namespace {

TEST(SizesTest, ReadsDecimalAndBinaryUnits) {
  EXPECT_EQ(parse_size("10GB"), 10'000'000'000);
  EXPECT_EQ(parse_size("1.5GiB"), 1'610'612'736);
  EXPECT_EQ(parse_size(" 2 kb "), 250);
  EXPECT_EQ(parse_size("2KB"), 2000);
  EXPECT_EQ(parse_size("123"), 123);
  EXPECT_EQ(parse_size("7B"), 7);
}

TEST(SizesTest, RefusesWhatIsNotASize) {
  for (const char* text : {"", "GB", "-1GB", "10XB", "1e30GB", "nan", "inf"}) {
    testing::expect_error<ConfigError>(
        [&] { parse_size(text); }, "is not a size");
  }
}

TEST(SizesTest, PrintsForPeople) {
  EXPECT_EQ(format_size(512), "512 bytes");
  EXPECT_EQ(format_size(1536), "1.50 KB");
  EXPECT_EQ(format_size(3LL << 30), "3.00 GB");
}

}  // namespace
}  // namespace accelerate::detail
