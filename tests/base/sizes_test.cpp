#include "base/text/sizes.h"

#include <gtest/gtest.h>

#include <accelerate/error.h>

#include "support/expect_error.h"

namespace accelerate::detail {
namespace sizes_test {

TEST(SizesTest, ReadsDecimalAndBinaryUnits) {
  EXPECT_EQ(parse_size("10GB"), 10'000'000'000);
  EXPECT_EQ(parse_size("1.5GiB"), 1'610'612'736);
  EXPECT_EQ(parse_size(" 2 kb "), 250);
  EXPECT_EQ(parse_size("2KB"), 2000);
  EXPECT_EQ(parse_size("1e2mIb"), 104'857'600);
  EXPECT_EQ(parse_size("1_000 MB"), 1'000'000'000);
}

TEST(SizesTest, RefusesWhatIsNotASize) {
  for (const char* text :
       {"",
        "GB",
        "-1GB",
        "10XB",
        "1e30GB",
        "nan",
        "infGB",
        "123",
        "7B",
        "1TB",
        "_1GB",
        "1_GB",
        "1__0GB"}) {
    testing::expect_error<ConfigError>(
        [&] { parse_size(text); }, "a size must be a number and one of KB");
  }
}

TEST(SizesTest, PrintsForPeople) {
  EXPECT_EQ(format_size(512), "512 bytes");
  EXPECT_EQ(format_size(1536), "1.5 KB");
  EXPECT_EQ(format_size(348184.16), "340.02 KB");
  EXPECT_EQ(format_size(1e18), "888.18 PB");
  EXPECT_EQ(format_size(3LL << 30), "3.0 GB");
}

}  // namespace sizes_test
}  // namespace accelerate::detail
