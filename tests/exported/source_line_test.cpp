// The line of Python's source that an operator's error names.
#include "format/exported/argument_parser.h"

#include <gtest/gtest.h>

namespace accelerate::testing::source_line_test {

using detail::source_line;

TEST(SourceLine, IsTheLastCallOutsideOfPyTorch) {
  EXPECT_EQ(
      source_line("File \"/home/me/train.py\", line 5, in forward\n"
                  "    return self.net(x)\n"
                  "  File \"/home/me/net.py\", line 12, in forward\n"
                  "    return self.head(x)\n"
                  "           ^^^^^^^^^^^^\n"
                  "  File \"/usr/lib/torch/nn/modules/linear.py\", line 134, "
                  "in forward\n"
                  "    return F.linear(input, self.weight, self.bias)"),
      "/home/me/net.py:12: return self.head(x)");
}

TEST(SourceLine, IsPyTorchsIfThereIsNoOther) {
  EXPECT_EQ(
      source_line("File \"/usr/lib/torch/nn/linear.py\", line 134, in forward"),
      "/usr/lib/torch/nn/linear.py:134");
  EXPECT_EQ(source_line(""), "");
  EXPECT_EQ(source_line("File \"x"), "");
  EXPECT_EQ(source_line("\n\n  nonsense\n"), "");
}

}  // namespace accelerate::testing::source_line_test
