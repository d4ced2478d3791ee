#include <limits>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/text/text.h"
#include "cli/run_journal.h"
#include "cli/watch/terminal/curve_plot.h"
#include "cli/watch/terminal/dashboard.h"
#include "support/temporary_directory.h"

namespace accelerate::cli {
namespace dashboard_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::RunJournal;

TEST(BrailleCanvas, HasADotForEachBitOfACharacter) {
  BrailleCanvas canvas(2, 1);
  EXPECT_EQ(canvas.width(), 4);
  EXPECT_EQ(canvas.height(), 4);
  EXPECT_EQ(canvas.row(0, false), "  ");
  canvas.dot(0, 0);
  canvas.dot(1, 3);
  canvas.dot(3, 1);
  EXPECT_EQ(canvas.row(0, false), "\u2881\u2810");
  // Outside the canvas.
  canvas.dot(4, 0);
  canvas.dot(0, 4);
  canvas.dot(-1, -1);
  EXPECT_EQ(canvas.row(0, false), "\u2881\u2810");
}

TEST(BrailleCanvas, DrawsLinesOfAnyDirection) {
  BrailleCanvas down(2, 1);
  down.line(0, 0, 3, 3);
  EXPECT_EQ(down.row(0, false), "\u2811\u2884");
  BrailleCanvas up(2, 1);
  up.line(3, 0, 0, 3);
  EXPECT_EQ(up.row(0, false), "\u2860\u280a");
  BrailleCanvas flat(2, 1);
  flat.line(3, 2, 0, 2);
  EXPECT_EQ(flat.row(0, false), "\u2824\u2824");
}

TEST(BrailleCanvas, ColorsCells) {
  BrailleCanvas canvas(3, 1);
  canvas.dot(0, 0, 33);
  canvas.dot(2, 0, 33);
  canvas.dot(4, 0, 35);
  EXPECT_EQ(
      canvas.row(0, true),
      "\x1b[38;5;33m\u2801\u2801\x1b[38;5;35m\u2801\x1b[39m");
}

class DashboardOfRuns : public ::testing::Test {
 protected:
  WatchedRuns& open() {
    runs_ = std::make_unique<WatchedRuns>(
        std::vector<std::string>{directory_.path().string()});
    runs_->update();
    return *runs_;
  }
  RunJournal journal(const std::string& run) {
    return RunJournal(directory_ / run);
  }
  void write_two_runs() {
    journal("a")
        .scalars(100, 0, {{"accuracy", 0.5}, {"loss", 4}})
        .scalars(101, 1, {{"loss", 2}})
        .scalars(102, 2, {{"loss", 0}})
        .event(102, {}, detail::ranks_event({{1, 1, 2, 90}, {0, 2, 3, 100}}))
        .write();
    journal("b")
        .scalars(100, 0, {{"loss", 0}})
        .scalars(102, 2, {{"loss", 4}})
        .write();
  }

  testing::TemporaryDirectory directory_;
  std::unique_ptr<WatchedRuns> runs_;
};

TEST_F(DashboardOfRuns, DrawsCurvesLegendRanksAndKeys) {
  write_two_runs();
  const Dashboard dashboard(open());
  EXPECT_THAT(
      dashboard.draw({42, 16}, {.has_keys = true, .now = 105}),
      ElementsAre(
          "loss  (last entry 3.0 s ago)",
          "         4 \u2502\u2811\u2822\u2884\u2840                      "
          "\u2880\u2860\u2814\u280a",
          "           \u2502   \u2808\u2811\u2822\u2884\u2840              "
          "\u2880\u2860\u2814\u280a\u2801   ",
          "           \u2502       \u2808\u2812\u2824\u28c0        "
          "\u28c0\u2814\u280a\u2801       ",
          "   2.28571 \u2502           "
          "\u2809\u2812\u2824\u28c0\u28c0\u2824\u2812\u2809           ",
          "           \u2502           "
          "\u28c0\u2824\u2812\u2809\u2811\u2822\u2884\u2840           ",
          "           \u2502       \u2880\u2860\u2814\u2809       "
          "\u2808\u2811\u2822\u2884\u2840       ",
          "           \u2502   \u2880\u2860\u2814\u280a\u2801              "
          "\u2808\u2811\u2822\u2884\u2840   ",
          "         0 \u2502\u2860\u2814\u280a\u2801                      "
          "\u2808\u2811\u2822\u2884",
          "            0                            2",
          "\u2501\u2501 a  step 2  0",
          "\u2501\u2501 b  step 2  4",
          "rank  step  behind  steps/s  memory MB",
          "0        2       0        3        100",
          "1        1       1        2         90  sl",
          "\u2190 \u2192 figure  + - zoom  s smooth  l log  q q"));
}

TEST_F(DashboardOfRuns, FillsAnyScreenExactly) {
  write_two_runs();
  Dashboard dashboard(open());
  for (const std::size_t columns : {1U, 23U, 24U, 60U, 200U}) {
    for (const std::size_t rows : {1U, 5U, 6U, 7U, 10U, 24U, 80U}) {
      for (const bool has_keys : {false, true}) {
        const auto lines =
            dashboard.draw({columns, rows}, {.has_keys = has_keys});
        EXPECT_EQ(lines.size(), rows) << columns << " x " << rows;
        for (const std::string& line : lines)
          EXPECT_LE(detail::num_columns_of(line), columns) << line;
      }
    }
  }
}

TEST_F(DashboardOfRuns, SwitchesFiguresBothWays) {
  write_two_runs();
  Dashboard dashboard(open());
  const auto title = [&] { return dashboard.draw({60, 12}, {})[0]; };
  EXPECT_THAT(title(), HasSubstr("loss"));
  dashboard.press(WatchKey::next_figure);
  EXPECT_THAT(title(), HasSubstr("accuracy"));
  dashboard.press(WatchKey::next_figure);
  EXPECT_THAT(title(), HasSubstr("loss"));
  dashboard.press(WatchKey::previous_figure);
  EXPECT_THAT(title(), HasSubstr("accuracy"));
}

TEST_F(DashboardOfRuns, ZoomsToTheLastSteps) {
  RunJournal a = journal("a");
  for (int step = 0; step <= 100; ++step)
    a.scalars(step, step, {{"loss", 1.0 * step}});
  a.write();
  Dashboard dashboard(open());
  const auto axis = [&] { return dashboard.draw({40, 10}, {})[8]; };
  EXPECT_EQ(axis(), "            0                        100");
  dashboard.press(WatchKey::zoom_in);
  dashboard.press(WatchKey::zoom_in);
  EXPECT_EQ(axis(), "            75                       100");
  EXPECT_THAT(
      dashboard.draw({60, 10}, {})[0], HasSubstr("last 1/4 of the steps"));
  dashboard.press(WatchKey::zoom_out);
  dashboard.press(WatchKey::zoom_out);
  dashboard.press(WatchKey::zoom_out);
  EXPECT_EQ(axis(), "            0                        100");
}

TEST_F(DashboardOfRuns, HasALogAxisThatLeavesOutWhatHasNoLogarithm) {
  journal("a")
      .scalars(0, 0, {{"loss", 100}})
      .scalars(1, 1, {{"loss", -1}})
      .scalars(2, 2, {{"loss", std::numeric_limits<double>::quiet_NaN()}})
      .scalars(3, 3, {{"loss", 1}})
      .write();
  Dashboard dashboard(open());
  dashboard.press(WatchKey::log_axis);
  const auto lines = dashboard.draw({40, 12}, {});
  EXPECT_THAT(lines[0], HasSubstr("log axis"));
  EXPECT_EQ(lines[1].substr(0, 10), "       100");
  EXPECT_EQ(lines[9].substr(0, 10), "         1");
}

TEST_F(DashboardOfRuns, ShowsTheSlowestOfManyRanks) {
  std::vector<detail::JournalRank> ranks;
  for (int i = 0; i < 64; ++i) ranks.push_back({i, 10, i == 40 ? 1.0 : 2, 5});
  journal("a")
      .scalars(0, 0, {{"loss", 1}})
      .event(0, {}, detail::ranks_event(ranks))
      .write();
  const auto lines = Dashboard(open()).draw({80, 24}, {});
  EXPECT_THAT(
      lines,
      ::testing::Contains("40      10       0        1          5  slowest"));
}

TEST_F(DashboardOfRuns, ShowsEntriesThatComeLater) {
  RunJournal a = journal("a");
  a.scalars(0, 0, {{"loss", 1}}).write();
  WatchedRuns& runs = open();
  const Dashboard dashboard(runs);
  EXPECT_THAT(dashboard.draw({60, 10}, {})[9], HasSubstr("step 0  1"));
  a.scalars(1, 1, {{"loss", 0.5}}).write();
  journal("b").scalars(1, 7, {{"loss", 3}}).write();
  runs.update();
  const auto lines = dashboard.draw({60, 12}, {});
  EXPECT_THAT(lines[10], HasSubstr("a  step 1  0.5"));
  EXPECT_THAT(lines[11], HasSubstr("b  step 7  3"));
}

TEST_F(DashboardOfRuns, MarksCheckpoints) {
  RunJournal a = journal("a");
  for (int step = 0; step <= 100; ++step)
    a.scalars(step, step, {{"loss", 1.0 * step}});
  a.event(50, 50, detail::checkpoint_event("checkpoints/0"))
      .event(75, 75, detail::checkpoint_event("checkpoints/1"))
      .event(80, {}, detail::checkpoint_event("without a step"))
      .write();
  Dashboard dashboard(open());
  EXPECT_EQ(
      dashboard.draw({42, 10}, {})[8],
      "            0              \u25b2      \u25b2    100");
  EXPECT_EQ(
      dashboard.draw({42, 10}, {})[9],
      "\u2501\u2501 a  step 100  100  saved at 75");
  dashboard.press(WatchKey::zoom_in);
  dashboard.press(WatchKey::zoom_in);
  // The first marker is out of view; the second is where the curve starts.
  EXPECT_EQ(
      dashboard.draw({42, 10}, {})[8],
      "            75                         100");
}

TEST_F(DashboardOfRuns, ShowsTheLastWarning) {
  RunJournal a = journal("a");
  a.scalars(0, 0, {{"loss", 1}})
      .event(10, {}, detail::warning_event("nearly\x1b full"))
      .write();
  WatchedRuns& runs = open();
  const Dashboard dashboard(runs);
  EXPECT_EQ(
      dashboard.draw({60, 12}, {.now = 15})[11],
      "warning 5.0 s ago: nearly\\x1b full");
  a.event(14, {}, detail::warning_event("full")).write();
  runs.update();
  EXPECT_EQ(
      dashboard.draw({60, 12}, {.now = 15})[11],
      "2 warnings, the last one 1.0 s ago: full");
}

TEST_F(DashboardOfRuns, HasNoEscapeSequencesFromNames) {
  journal("a\x1b[2J").scalars(0, 0, {{"lo\x1bss", 1}}).write();
  for (const std::string& line : Dashboard(open()).draw({60, 10}, {}))
    EXPECT_THAT(line, Not(HasSubstr("\x1b")));
}

TEST(Keys, AreTakenFromTheirBytes) {
  std::string input = "\x1b[C\x1b[D\x1bOC\t\x1b[Z+-=slxq\x03";
  std::vector<WatchKey> keys;
  while (!input.empty()) keys.push_back(take_key(input, false));
  EXPECT_THAT(
      keys,
      ElementsAre(
          WatchKey::next_figure,
          WatchKey::previous_figure,
          WatchKey::next_figure,
          WatchKey::next_figure,
          WatchKey::previous_figure,
          WatchKey::zoom_in,
          WatchKey::zoom_out,
          WatchKey::zoom_in,
          WatchKey::smooth,
          WatchKey::log_axis,
          WatchKey::none,
          WatchKey::quit,
          WatchKey::quit));
}

TEST(Keys, WaitForTheRestOfASequence) {
  std::string input = "\x1b[";
  EXPECT_EQ(take_key(input, false), WatchKey::none);
  EXPECT_EQ(input, "\x1b[");
  input += "C";
  EXPECT_EQ(take_key(input, false), WatchKey::next_figure);
  input = "\x1b";
  EXPECT_EQ(take_key(input, true), WatchKey::none);
  EXPECT_EQ(input, "");
}

}  // namespace dashboard_test
}  // namespace accelerate::cli
