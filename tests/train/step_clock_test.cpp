#include "train/step/step_clock.h"

#include <string>

namespace accelerate::detail {
namespace step_clock_test {

std::string syncs(int window, const std::string& batches) {
  StepClock clock(window);
  std::string out;
  for (const char batch : batches) {
    clock.begin_micro_step(batch == 'L');
    out += clock.sync_gradients() ? 'S' : '-';
  }
  return out;
}

TEST(StepClock, SyncsBeforeAnyWindow) {
  EXPECT_TRUE(StepClock(3).sync_gradients());
}

TEST(StepClock, EndsEveryWindow) { EXPECT_EQ(syncs(3, "......"), "--S--S"); }

TEST(StepClock, EndsTheWindowAtTheLastBatchAndBeginsAnew) {
  EXPECT_EQ(syncs(3, "....L...."), "--S-S--S-");
}

TEST(StepClock, SyncsAlwaysInAWindowOfOne) {
  EXPECT_EQ(syncs(1, "..L."), "SSSS");
}

}  // namespace step_clock_test
}  // namespace accelerate::detail
