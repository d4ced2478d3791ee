#include "cli/launch/ranks/rank_output.h"

#include <gtest/gtest.h>

namespace accelerate::cli {
namespace line_prefixer_test {

TEST(LinePrefixer, PassesOnOnlyCompleteLines) {
  LinePrefixer prefixer("[1] ");
  EXPECT_EQ(prefixer.feed("one\ntw"), "[1] one\n");
  EXPECT_EQ(prefixer.feed("o\n\n"), "[1] two\n[1] \n");
  EXPECT_EQ(prefixer.feed("rest"), "");
  EXPECT_EQ(prefixer.finish(), "[1] rest\n");
  EXPECT_EQ(prefixer.finish(), "");
}

TEST(LinePrefixer, TakesACarriageReturnAsTheEndOfALine) {
  LinePrefixer prefixer("[0] ");
  EXPECT_EQ(
      prefixer.feed("10 %\r20 %\rdone\n"), "[0] 10 %\r[0] 20 %\r[0] done\n");
}

TEST(LinePrefixer, TakesReturnAndNewlineAsOneEnd) {
  LinePrefixer prefixer("[0] ");
  EXPECT_EQ(prefixer.feed("a\r\nb\r"), "[0] a\r\n[0] b\r");
  EXPECT_EQ(prefixer.feed("\nc\n"), "\n[0] c\n");
}

TEST(LinePrefixer, DoesNotPrefixABareCarriageReturn) {
  LinePrefixer prefixer("[0] ");
  EXPECT_EQ(prefixer.feed("\rx\n"), "\r[0] x\n");
}

}  // namespace line_prefixer_test
}  // namespace accelerate::cli
