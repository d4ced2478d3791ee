#include <accelerate/progress.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/progress/byte_progress.h"
#include "base/progress/meter.h"
#include "base/progress/progress_bar.h"
#include "base/progress/screen.h"
#include "base/text/text.h"
#include "support/temporary_directory.h"

namespace accelerate::detail {
namespace progress_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// A terminal: the lines it shows after the text written to it.
class Terminal {
 public:
  void write(std::string_view text) {
    for (std::size_t i = 0; i < text.size(); ++i) {
      const char c = text[i];
      if (c == '\n') {
        ++row_;
        column_ = 0;
      } else if (c == '\r') {
        column_ = 0;
      } else if (c == '\x1b') {
        obey(text[i += 2]);
      } else {
        line().resize(std::max(line().size(), column_), ' ');
        line().replace(column_++, 1, 1, c);
      }
    }
  }
  [[nodiscard]] std::vector<std::string> lines() const {
    std::vector<std::string> shown = lines_;
    while (!shown.empty() && shown.back().empty()) shown.pop_back();
    return shown;
  }

 private:
  std::string& line() {
    if (lines_.size() <= row_) lines_.resize(row_ + 1);
    return lines_[row_];
  }
  // Cursor up, erase to the end of the line, erase all below.
  void obey(char code) {
    if (code == 'A') --row_;
    if (code == 'A') return;
    line().resize(std::min(line().size(), column_));
    if (code == 'J') lines_.resize(row_ + 1);
  }

  std::vector<std::string> lines_;
  std::size_t row_ = 0, column_ = 0;
};

struct Fixture {
  Terminal terminal = {};
  std::string plain = {};
  int num_writes = 0;
  double now = 0;
  ProgressScreen screen{
      [this](std::string_view text) {
        ++num_writes;
        terminal.write(text);
      },
      true};
  ProgressScreen pipe{[this](std::string_view text) { plain += text; }, false};

  ProgressBar bar(ProgressOptions options) {
    if (!options.columns) options.columns = 60;
    if (!options.ascii) options.ascii = true;
    return ProgressBar(options, screen, [this] { return now; });
  }
};

TEST(Meter, SaysWhatTqdmDoes) {
  Meter meter{
      .description = "train",
      .count = 42,
      .total = 100,
      .elapsed_seconds = 3.5,
      .rate = 12,
      .postfix = "loss=0.5"};
  EXPECT_EQ(
      meter_line(meter, {.ascii = true}),
      "train:  42%|####2     | 42/100 [00:03<00:04, 12.00it/s, loss=0.5]");
  EXPECT_EQ(
      meter_line(meter, {.ascii = false}),
      "train:  42%|████▏     | 42/100 [00:03<00:04, 12.00it/s, loss=0.5]");
  meter.total = std::nullopt;
  meter.postfix.clear();
  EXPECT_EQ(meter_line(meter, {}), "train: 42it [00:03, 12.00it/s]");
  meter.rate = 0.25;
  EXPECT_EQ(meter_line(meter, {}), "train: 42it [00:03,  4.00s/it]");
  meter.rate = std::nullopt;
  EXPECT_EQ(meter_line(meter, {}), "train: 42it [00:03, ?it/s]");
}

TEST(Meter, KeepsToItsColumns) {
  const Meter meter{.description = "é", .count = 1, .total = 2};
  for (const int columns : {1, 5, 20, 40, 79}) {
    for (const bool ascii : {true, false}) {
      const auto size = num_columns_of(
          meter_line(meter, {.ascii = ascii, .columns = columns}));
      EXPECT_LE(size, static_cast<std::size_t>(columns));
      if (columns >= 40) {
        EXPECT_EQ(size, static_cast<std::size_t>(columns));
      }
    }
  }
}

TEST(Meter, HasNoTotalBeyondIt) {
  EXPECT_EQ(meter_line({.count = 3, .total = 2}, {}), "3it [00:00, ?it/s]");
  EXPECT_EQ(meter_line({.count = 0, .total = 0}, {}), "0it [00:00, ?it/s]");
}

TEST(Meter, ScalesUnits) {
  const Meter meter{
      .count = 1536,
      .total = 3 << 20,
      .rate = 2048,
      .unit = "B",
      .unit_scale = true,
      .unit_divisor = 1024};
  EXPECT_THAT(
      meter_line(meter, {.has_bar = false}),
      HasSubstr(" 1.50k/3.00M [00:00<25:35, 2.00kB/s]"));
  EXPECT_EQ(scaled_text(999.4, 1000), "999");
  EXPECT_EQ(scaled_text(999.5, 1000), "1.00k");
  EXPECT_EQ(scaled_text(12345678, 1000), "12.3M");
}

TEST(Meter, WritesTimesAsAClock) {
  EXPECT_EQ(clock_text(59.9), "00:59");
  EXPECT_EQ(clock_text(3723), "1:02:03");
  EXPECT_EQ(clock_text(-1), "?");
}

TEST(Meter, ShowsNoControlCharacters) {
  const std::string line =
      meter_line({.description = "a\x1b[2J", .postfix = "b\nc"}, {});
  EXPECT_EQ(line.find('\x1b'), std::string::npos);
  EXPECT_EQ(line.find('\n'), std::string::npos);
}

TEST(ProgressScreen, PrintsMessagesAboveNestedBars) {
  Fixture seen;
  ProgressScreen& screen = seen.screen;
  const auto outer = screen.add();
  screen.draw(outer, "outer 1");
  const auto inner = screen.add();
  screen.draw(inner, "inner 1");
  screen.write_line("message");
  screen.draw(inner, "inner 2");
  EXPECT_THAT(
      seen.terminal.lines(), ElementsAre("message", "outer 1", "inner 2"));
  screen.remove(inner, "");
  screen.draw(outer, "outer");
  EXPECT_THAT(seen.terminal.lines(), ElementsAre("message", "outer"));
  screen.remove(outer, "outer end");
  screen.write_line("after");
  EXPECT_THAT(
      seen.terminal.lines(), ElementsAre("message", "outer end", "after"));
}

TEST(ProgressScreen, LeavesRoomForOtherOutput) {
  Fixture seen;
  const auto bar = seen.screen.add();
  seen.screen.draw(bar, "bar");
  seen.screen.print_above([&] { seen.terminal.write("printed\n"); });
  EXPECT_THAT(seen.terminal.lines(), ElementsAre("printed", "bar"));
}

TEST(ProgressBar, IsDrawnAtItsIntervalOnly) {
  Fixture seen;
  ProgressBar bar = seen.bar({.total = 1000, .min_interval_seconds = 0.1});
  const int before = seen.num_writes;
  for (int i = 1; i <= 100; ++i) {
    seen.now = i * 0.01;
    bar.look(i);
  }
  EXPECT_NEAR(seen.num_writes - before, 10, 1);
  EXPECT_THAT(seen.terminal.lines()[0], HasSubstr("100.00it/s"));
}

TEST(ProgressBar, AsksAgainAfterAFractionOfTheInterval) {
  Fixture seen;
  ProgressBar bar = seen.bar({.min_interval_seconds = 0.1});
  std::int64_t count = 0, stride = 1;
  for (int look = 0; look < 40; ++look) {
    count += stride;
    seen.now = static_cast<double>(count) * 1e-6;
    stride = bar.look(count);
  }
  EXPECT_NEAR(static_cast<double>(stride), 12500, 1);
  seen.now += 100;
  EXPECT_EQ(bar.look(count + 1), 1);
}

TEST(ProgressBar, LeavesALastLineWithTheRateOfAllOrNothing) {
  Fixture seen;
  {
    ProgressBar bar = seen.bar({.total = 10, .initial = 2});
    seen.now = 4;
    bar.close(10);
    bar.close(11);
  }
  ASSERT_EQ(seen.terminal.lines().size(), 1U);
  EXPECT_THAT(
      seen.terminal.lines()[0], HasSubstr("| 10/10 [00:04<00:00,  2.00it/s]"));
  {
    ProgressBar bar = seen.bar({.total = 10, .leave = false});
    EXPECT_EQ(seen.terminal.lines().size(), 2U);
    bar.close(10);
  }
  EXPECT_EQ(seen.terminal.lines().size(), 1U);
}

TEST(ProgressBar, WritesPlainLinesWhereThereIsNoTerminal) {
  Fixture seen;
  ProgressBar bar(
      {.description = "load", .total = 4, .line_interval_seconds = 10},
      seen.pipe,
      [&] { return seen.now; });
  for (const int count : {1, 2, 3}) {
    seen.now += 6;
    bar.look(count);
  }
  bar.set_postfix("loss=1");
  bar.close(4);
  EXPECT_EQ(
      seen.plain,
      "load:  50% 2/4 [00:12<00:12,  6.00s/it]\n"
      "load: 100% 4/4 [00:18<00:00,  4.50s/it, loss=1]\n");
}

TEST(ProgressBar, ShowsNothingBeforeItsDelay) {
  Fixture seen;
  ProgressBar brief = seen.bar({.total = 10, .delay_seconds = 2});
  seen.now = 1.9;
  brief.look(9);
  brief.close(10);
  EXPECT_EQ(seen.num_writes, 0);
  ProgressBar bar = seen.bar({.total = 10, .delay_seconds = 2});
  seen.now += 2;
  bar.look(5);
  ASSERT_EQ(seen.terminal.lines().size(), 1U);
  EXPECT_THAT(seen.terminal.lines()[0], HasSubstr("| 5/10 [00:02<00:02"));
  bar.close(10);
  EXPECT_THAT(seen.terminal.lines()[0], HasSubstr("| 10/10 ["));
}

TEST(ByteProgress, CountsWhatFilesGet) {
  testing::TemporaryDirectory directory;
  ::testing::internal::CaptureStderr();
  {
    const auto disk = count_writes(
        make_file_system(),
        std::make_shared<ByteProgress>(
            4000,
            ProgressOptions{
                .description = "save", .line_interval_seconds = 0}));
    const std::vector<std::byte> bytes(1000);
    const std::vector<Bytes> pieces{bytes, bytes, bytes};
    const auto file = disk->create(directory / "file");
    file->write_at(0, bytes);
    file->write_at(1000, pieces);
    file->write_at(4000, bytes);  // more than was expected
    file->finish();
  }
  const std::string shown = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(shown, HasSubstr("save:  25% 1.00k/4.00k ["));
  EXPECT_THAT(shown, HasSubstr("save: 100% 4.00k/4.00k ["));
  EXPECT_THAT(shown, Not(HasSubstr("5.00k")));
  EXPECT_EQ(std::filesystem::file_size(directory / "file"), 5000U);
}

TEST(ProgressOptions, AreThoseOfTheRank) {
  EXPECT_TRUE(progress_options_of_rank({}, false, true).disable);
  EXPECT_FALSE(
      progress_options_of_rank({.main_process_only = false}, false, true)
          .disable);
  EXPECT_TRUE(progress_options_of_rank({.disable = true}, true, true).disable);
  EXPECT_EQ(progress_options_of_rank({}, true, false).ascii, true);
  EXPECT_EQ(
      progress_options_of_rank({.ascii = false}, true, false).ascii, false);
}

TEST(ProgressRange, CountsWhatALoopReads) {
  std::vector<int> numbers{3, 4, 5};
  auto borrowed = progress(numbers, {.disable = true});
  for (int& number : borrowed) ++number;
  EXPECT_THAT(numbers, ElementsAre(4, 5, 6));
  EXPECT_EQ(borrowed.count(), 3);
  std::vector<std::int64_t> seen;
  for (const std::int64_t i : progress(3, {.disable = true})) seen.push_back(i);
  EXPECT_THAT(seen, ElementsAre(0, 1, 2));
  auto by_hand = progress(10, {.initial = 4, .disable = true});
  by_hand.update(2);
  EXPECT_EQ(by_hand.count(), 6);
  by_hand.reset();
  EXPECT_EQ(by_hand.count(), 4);
}

TEST(Postfix, HasThreeDigits) {
  EXPECT_EQ(PostfixText(0.123456).text(), "0.123");
  EXPECT_EQ(PostfixText(1e-5).text(), "1e-05");
  EXPECT_EQ(PostfixText(12345).text(), "12345");
  EXPECT_EQ(PostfixText("text").text(), "text");
}

template <class T>
concept Shown = requires(T first) { progress(first); };

static_assert(Shown<int> && Shown<std::vector<int>&> && !Shown<bool>);

}  // namespace progress_test
}  // namespace accelerate::detail
