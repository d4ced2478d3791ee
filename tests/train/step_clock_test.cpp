#include "train/session/step_clock.h"

#include <string>
#include <vector>

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

// Divisors of the last micro-steps of windows of 4, after a batch with
// `per_batch` micro-steps.
std::vector<int> divisors_after(int per_batch, int last) {
  StepClock clock(4);
  for (int i = 0; i < per_batch; ++i) clock.begin_micro_step(false);
  if (per_batch > 0) clock.note_batch(per_batch);
  std::vector<int> divisors;
  for (int i = 1; i <= last; ++i) {
    if (i > 1) clock.note_batch(i);
    clock.begin_micro_step(true);
    divisors.push_back(clock.divisor());
  }
  return divisors;
}

TEST(StepClock, DividesByTheTrueLengthIfBatchesHaveOneMicroStep) {
  EXPECT_EQ(divisors_after(1, 1), (std::vector<int>{2}));
  EXPECT_EQ(divisors_after(2, 2), (std::vector<int>{4, 4}));
  EXPECT_EQ(divisors_after(3, 3), (std::vector<int>{4, 4, 4}));
  EXPECT_EQ(divisors_after(0, 1), (std::vector<int>{4}));
  EXPECT_EQ(divisors_after(0, 2), (std::vector<int>{4, 4}));
}

TEST(StepClock, DividesByTheTrueLengthOfAWindowThatTheProgramEnds) {
  StepClock clock(4);
  for (int i = 0; i < 2; ++i) clock.begin_micro_step(false);
  clock.set_sync_gradients(true);
  EXPECT_EQ(clock.divisor(), 2);
}

TEST(StepClock, RemembersInACheckpointHowBatchesAreDivided) {
  StepClock saved(4), loaded(4);
  saved.note_batch(2);
  loaded.load_state_dict(saved.state_dict());
  loaded.begin_micro_step(true);
  EXPECT_EQ(loaded.divisor(), 4);
  loaded.load_state_dict({{"micro_step", 0}, {"serial", 3}});
  loaded.begin_micro_step(true);
  EXPECT_EQ(loaded.divisor(), 1);
}

}  // namespace step_clock_test
}  // namespace accelerate::detail
