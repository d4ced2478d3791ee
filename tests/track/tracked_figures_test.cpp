#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <semaphore>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <accelerate/error.h>

#include "format/journal/journal_reader.h"
#include "format/journal/run_history.h"
#include "support/expect_error.h"
#include "support/temporary_directory.h"
#include "track/run_figures.h"
#include "track/run_tracking.h"

namespace accelerate {
namespace {
namespace tracked_figures_test {

namespace fs = std::filesystem;
using detail::RunTracking;
using detail::RunTrackingOptions;

class TrackedFigures : public ::testing::Test {
 protected:
  RunTrackingOptions options(const std::string& run) {
    RunTrackingOptions result;
    result.logging_dir = directory_.path();
    result.run_name = run;
    return result;
  }
  static void log(RunTracking& tracking) {
    tracking.push({{1, 0}, TrackedValues{{"a", 0.5}}});
  }
  /// Returns the history of the run "r".
  detail::RunHistory history() {
    detail::RunHistory result;
    result.add(
        detail::JournalReader(detail::journal_path(directory_ / "r")).read());
    return result;
  }
  std::vector<detail::JournalRank> last_ranks() {
    const auto all = history();
    const auto* const event = all.last_event("ranks");
    return event ? detail::read_ranks(event->event.body)
                 : std::vector<detail::JournalRank>();
  }

  testing::TemporaryDirectory directory_;
};

/// Gives the steps of a loop, which is asked for them at each sample of the
/// figures. Once wait_for() returns, all samples but the last are in the
/// journal.
class Samples {
 public:
  std::function<std::int64_t()> counter() {
    return [this] {
      const std::int64_t step = ++num_asked_;
      enough_.release();
      return step;
    };
  }
  void wait_for(int num) {
    for (int i = 0; i < num; ++i) enough_.acquire();
  }

 private:
  std::atomic<std::int64_t> num_asked_ = 0;
  std::counting_semaphore<> enough_{0};
};

TEST_F(TrackedFigures, AreWrittenWhileTheJournalIsOpen) {
  Samples samples;
  RunTrackingOptions with = options("r");
  with.figures_interval = std::chrono::milliseconds(2);
  with.num_steps = samples.counter();
  with.opens_at_once = true;
  RunTracking tracking(std::move(with));
  samples.wait_for(4);
  tracking.finish();
  const auto ranks = last_ranks();
  ASSERT_EQ(ranks.size(), 1U);
  EXPECT_EQ(ranks[0].rank, 0);
  EXPECT_GE(ranks[0].step, 2);
  EXPECT_GT(ranks[0].steps_per_second, 0);
  EXPECT_GT(ranks[0].memory_mb, 0.5);
  const auto figures =
      detail::read_values(history().last_event("system")->event.body);
  EXPECT_EQ(figures.back().name, "steps_per_second");
  EXPECT_EQ(*figures.back().value.number(), ranks[0].steps_per_second);
}

TEST_F(TrackedFigures, GoToTheJournalThatIsResumed) {
  {
    RunTracking first(options("r"));
    log(first);
  }
  Samples samples;
  RunTrackingOptions with = options("r");
  with.run_name.reset();
  with.figures_interval = std::chrono::milliseconds(2);
  with.num_steps = samples.counter();
  with.opens_at_once = true;
  RunTracking second(std::move(with));
  samples.wait_for(3);
  second.resume({"r", 1});
  samples.wait_for(3);
  second.finish();
  EXPECT_GE(last_ranks().at(0).step, 4);
}

TEST_F(TrackedFigures, OfOtherRanksAreLeftOnTheBoard) {
  struct Board final : detail::RankBoard {
    void put(const detail::JournalRank& mine) override {
      if (num_left++ == 0) first.set_value(mine);
    }
    std::vector<detail::JournalRank> others() override { return {}; }
    int num_left = 0;
    std::promise<detail::JournalRank> first;
  };
  const auto board = std::make_shared<Board>();
  RunTrackingOptions other = options("r");
  other.is_main_process = false;
  other.rank = 3;
  other.figures_interval = std::chrono::milliseconds(2);
  other.board = board;
  {
    const RunTracking tracking(std::move(other));
    EXPECT_EQ(board->first.get_future().get().rank, 3);
  }
  EXPECT_FALSE(fs::exists(directory_ / "r"));
  EXPECT_EQ(board.use_count(), 1);  // its thread has ended
}

TEST_F(TrackedFigures, AreNotTakenWithoutAJournal) {
  struct Never {
    std::int64_t operator()() const {
      ADD_FAILURE() << "was asked";
      return 0;
    }
  };
  RunTrackingOptions without = options("r");
  without.figures_interval = std::chrono::milliseconds(1);
  without.num_steps = Never();
  { const RunTracking not_yet_open(without); }
  without.journal = false;
  RunTracking tracking(std::move(without));
  tracking.init_trackers("p", {}, {});
  log(tracking);
  RunTrackingOptions off = options("r");
  off.num_steps = Never();
  RunTracking other(std::move(off));
  log(other);
}

TEST_F(TrackedFigures, RefuseAnIntervalBelowZero) {
  RunTrackingOptions below = options("r");
  below.figures_interval = std::chrono::milliseconds(-5);
  testing::expect_error<ConfigError>(
      [&] { const RunTracking tracking(below); }, "but is -5 ms");
}

}  // namespace tracked_figures_test
}  // namespace
}  // namespace accelerate
