#include "track/run_figures.h"

#include <filesystem>
#include <fstream>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "support/temporary_directory.h"

namespace accelerate::detail {
namespace run_figures_test {

using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

/// State shared by all ranks.
struct Board {
  std::vector<JournalRank> left;
  bool is_gone = false;
};

class BoardOfRank final : public RankBoard {
 public:
  explicit BoardOfRank(Board& board) : board_(board) {}
  void put(const JournalRank& mine) override {
    require();
    board_.left.push_back(mine);
  }
  std::vector<JournalRank> others() override {
    require();
    return board_.left;
  }

 private:
  void require() const {
    if (board_.is_gone) throw std::runtime_error("gone");
  }
  Board& board_;
};

/// A rank whose steps and machine the test controls.
class Sampling : public ::testing::Test {
 protected:
  void SetUp() override {
    write("proc/self/statm", "9 1000 1");
    write("proc/stat", "cpu 100 0 0 300");
  }
  void write(const std::string& path, const std::string& text) {
    const auto file = directory_ / path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  RunFiguresOptions options(std::int64_t rank) {
    return {
        .rank = rank,
        .num_steps = [this] { return num_steps_; },
        .make_reader = [this] { return SystemReader(directory_.path()); },
        .board = std::make_shared<BoardOfRank>(board_)};
  }
  RunSampler main_rank(double seconds) {
    RunFiguresOptions main = options(0);
    main.report = [this](const JournalEvent& event, double time) {
      EXPECT_EQ(event.name, "");
      events_.push_back(
          event.kind + " " + event.body + " " + std::to_string(time));
    };
    main.rank_reports = [this] { return std::exchange(reports_, {}); };
    main.warn = [this](const std::string& text) { warnings_.push_back(text); };
    return {std::move(main), seconds};
  }

  std::vector<std::string> reports_;
  testing::TemporaryDirectory directory_;
  std::int64_t num_steps_ = 0;
  Board board_;
  std::vector<std::string> events_;
  std::vector<std::string> warnings_;
  const double process_mb_ =
      std::round(static_cast<double>(::sysconf(_SC_PAGESIZE))) / 1000;
};

TEST_F(Sampling, ReportsTheMachineAndEveryRank) {
  num_steps_ = 7;
  RunSampler sampler = main_rank(100);
  num_steps_ = 27;
  write("proc/stat", "cpu 125 0 0 375");
  sampler.sample(105);
  num_steps_ = 99;  // after the sample
  board_.left = {
      {.rank = 2, .step = 26, .steps_per_second = 3.5, .memory_mb = 9}};
  sampler.report();
  const std::string mb = json_text(process_mb_);
  EXPECT_THAT(
      events_,
      ElementsAre(
          "system {\"cpu_percent\":25.0,\"process_mb\":" + mb +
              ",\"disk_read_mb\":0.0,\"disk_write_mb\":0.0,"
              "\"network_in_mb\":0.0,\"network_out_mb\":0.0,"
              "\"steps_per_second\":4.0} 105.000000",
          "ranks [{\"rank\":0,\"step\":27,\"steps_per_second\":4.0,"
          "\"memory_mb\":" +
              mb +
              "},{\"rank\":2,\"step\":26,\"steps_per_second\":3.5,"
              "\"memory_mb\":9.0}] 105.000000"));
  EXPECT_THAT(warnings_, IsEmpty());
}

TEST_F(Sampling, ReportsWhatWasSaidOfRanksOnce) {
  RunSampler sampler = main_rank(100);
  reports_ = {"rank 2 hangs", "rank 1 is slow"};
  sampler.sample(105);
  sampler.report();
  ASSERT_EQ(events_.size(), 4U);
  const auto as_event = [](const char* text) {
    const JournalEvent event = warning_event(text);
    return event.kind + " " + event.body + " 105.000000";
  };
  EXPECT_EQ(events_[0], as_event("rank 2 hangs"));
  EXPECT_EQ(events_[1], as_event("rank 1 is slow"));
  sampler.report();
  EXPECT_EQ(events_.size(), 6U);
}

TEST_F(Sampling, CountsFromOneSampleToTheNext) {
  RunSampler sampler(options(3), 0);
  num_steps_ = 10;
  sampler.sample(5);
  num_steps_ = 11;
  sampler.sample(15);
  sampler.sample(14);  // the clock was set back
  EXPECT_THAT(
      board_.left,
      ElementsAre(
          JournalRank{3, 10, 2, process_mb_},
          JournalRank{3, 11, 0.1, process_mb_},
          JournalRank{3, 11, 0, process_mb_}));
}

TEST_F(Sampling, GoesOnWithoutABoardThatIsGone) {
  RunSampler main = main_rank(0);
  RunSampler other(options(1), 0);
  board_.is_gone = true;
  for (int i = 1; i <= 2; ++i) {
    main.sample(i);
    main.report();
    other.sample(i);
  }
  EXPECT_EQ(events_.size(), 4U);
  EXPECT_THAT(
      warnings_,
      ElementsAre("[track] the journal has no more figures of other ranks: "
                  "gone"));
  // A lost board is not asked again, even if it comes back.
  board_.is_gone = false;
  other.sample(3);
  EXPECT_THAT(board_.left, IsEmpty());
}

TEST(TimeToSample, EndsAtMultiplesOfTheInterval) {
  EXPECT_EQ(
      time_to_sample(milliseconds(10000), milliseconds(5000)).count(), 5000);
  EXPECT_EQ(
      time_to_sample(milliseconds(10003), milliseconds(5000)).count(), 4997);
  EXPECT_EQ(
      time_to_sample(milliseconds(12500), milliseconds(5000)).count(), 2500);
  EXPECT_EQ(
      time_to_sample(milliseconds(12501), milliseconds(5000)).count(), 7499);
  EXPECT_EQ(time_to_sample(milliseconds(7), milliseconds(1)).count(), 1);
}

RC_GTEST_PROP(TimeToSample, IsFromHalfAnIntervalToOneAndAHalf, ()) {
  const auto now = milliseconds(*rc::gen::inRange<std::int64_t>(0, 1LL << 42));
  const auto interval =
      milliseconds(*rc::gen::inRange<std::int64_t>(1, 100000));
  const auto time = time_to_sample(now, interval);
  RC_ASSERT(((now + time) % interval).count() == 0);
  RC_ASSERT(2 * time >= interval);
  RC_ASSERT(time >= milliseconds(1));
  RC_ASSERT(2 * time < 3 * interval + milliseconds(1));
}

}  // namespace run_figures_test
}  // namespace accelerate::detail
