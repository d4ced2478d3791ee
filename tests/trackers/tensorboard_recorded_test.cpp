#include <gtest/gtest.h>

#include "support/recorded_cases.h"

// Compares our files with recorded ones that torch.utils.tensorboard wrote for
// Accelerate.

namespace accelerate {
namespace {
namespace tensorboard_recorded_test {

TEST(RecordedTensorboard, FilesHoldWhatPythonWrote) {
  testing::expect_recorded_outcomes("tensorboard", 34);
}

}  // namespace tensorboard_recorded_test
}  // namespace
}  // namespace accelerate
