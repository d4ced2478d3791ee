// Journals that would take hours if any step took time or memory out of
// proportion to their size.
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <accelerate/error.h>

#include "format/journal/journal_frame.h"
#include "format/journal/journal_kinds.h"
#include "format/journal/journal_reader.h"
#include "format/journal/journal_writer.h"
#include "format/journal/run_history.h"
#include "support/expect_error.h"
#include "support/temporary_directory.h"

namespace accelerate::detail {
namespace long_journal_test {

using testing::TemporaryDirectory;
namespace fs = std::filesystem;
using Entries = std::vector<JournalEntry>;
using Point = RunHistory::Point;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

JournalEntry loss(std::int64_t step, const std::string& name = "loss") {
  return {1.0, step, JournalScalars{{{name, 0.5}}}};
}
JournalEntry rewind_to(std::int64_t step) { return {2, step, JournalRewind{}}; }
JournalEntry session(double time = 0) {
  return {time, std::nullopt, JournalSession{"{}"}};
}
JournalEntry note(std::int64_t step) {
  return {1, step, JournalEvent{"text", "note", "text/plain", ""}};
}

// A quadratic reader needs more than ten minutes for each of these.
constexpr std::int64_t kMany = 200'000;

TEST(LongJournal, MayHaveFallingSteps) {
  RunHistory history;
  for (std::int64_t step = kMany; step > 0; --step) history.add(loss(step));
  history.settle();
  const auto& points = history.series().at("loss");
  ASSERT_EQ(points.size(), static_cast<std::size_t>(kMany));
  EXPECT_EQ(points.front().step, 1);
  EXPECT_EQ(points.back().step, kMany);
}

TEST(LongJournal, MayAlternateBetweenProcessesAndLateSteps) {
  RunHistory history;
  history.add(session());
  for (std::int64_t step = kMany; step > 0; --step) {
    history.add(loss(step));
    history.add(session());
    history.add(loss(2 * kMany));
  }
  history.settle();
  // Every step, and the last one of the last process.
  EXPECT_EQ(
      history.series().at("loss").size(), static_cast<std::size_t>(kMany + 1));
}

TEST(LongJournal, MayReturnToItsBeginningAgainAndAgain) {
  RunHistory history;
  for (std::int64_t i = 0; i < kMany; ++i) history.add(note(1));
  for (std::int64_t i = 0; i < kMany; ++i) {
    history.add(note(3));
    history.add(loss(3));
    history.add(rewind_to(2));
  }
  history.settle();
  EXPECT_EQ(history.events().size(), static_cast<std::size_t>(kMany));
  EXPECT_EQ(history.series().at("loss").size(), 0U);
}

TEST(LongJournal, MayReturnStepByStepWithManyNames) {
  RunHistory history;
  constexpr std::int64_t kNames = kMany / 10;
  for (std::int64_t i = 0; i < kNames; ++i) {
    history.add(loss(i, std::to_string(i)));
    history.add(note(kNames - i));
  }
  for (std::int64_t i = kNames; i-- > 0;) history.add(rewind_to(i));
  history.settle();
  EXPECT_EQ(history.events().size(), 0U);
  EXPECT_EQ(history.series().at("0").size(), 1U);
  EXPECT_EQ(history.series().at("1").size(), 0U);
}

std::string frame(std::uint64_t sequence) {
  JournalEncoder encoder;
  encoder.add(loss(static_cast<std::int64_t>(sequence)));
  return encoder.take_frame(sequence);
}

// The headers of empty frames, whose payloads would be the rest of the file.
TEST(LongJournal, IsRefusedIfItsHeadersOverlap) {
  const TemporaryDirectory directory(TemporaryDirectory::memory());
  const fs::path path = directory / "journal";
  JournalEncoder encoder;
  constexpr std::size_t kBytes = std::size_t{48} << 20U;
  encoder.add(
      {0, 1, JournalEvent{"text", "", "text/plain", std::string(kBytes, 'x')}});
  const std::string header =
      encoder.take_frame(0).substr(0, kJournalHeaderBytes);
  {
    std::ofstream file(path, std::ios::binary);
    for (std::size_t i = 0; i < 2 * kBytes; i += header.size()) file << header;
  }
  testing::expect_error<Error>(
      [&] { JournalReader(path).read(); }, "headers of its frames overlap");
}

std::size_t peak_kilobytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (!line.starts_with("VmHWM:")) continue;
    std::istringstream rest(line.substr(6));
    std::size_t kilobytes = 0;
    rest >> kilobytes;
    return kilobytes;
  }
  return 0;
}

TEST(LongJournal, MayHaveALongRunOfZeros) {
  const TemporaryDirectory directory;
  const fs::path path = directory / "journal";
  {
    std::ofstream file(path, std::ios::binary);
    file << frame(0);
  }
  constexpr std::uintmax_t kZeros = std::uintmax_t{320} << 20U;
  fs::resize_file(path, fs::file_size(path) + kZeros);
  std::ofstream("/proc/self/clear_refs") << "5";  // resets the peak
  const std::size_t before = peak_kilobytes();
  JournalReader reader(path);
  EXPECT_EQ(reader.read().size(), 1U);
  EXPECT_EQ(reader.read().size(), 0U);
  std::vector<std::string> lines;
  {
    JournalWriter writer(path, "{}", {.report = [&](const std::string& line) {
                           lines.push_back(line);
                         }});
  }
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_TRUE(lines[0].starts_with("the last 335544320 bytes of the journal"));
  EXPECT_EQ(reader.read().size(), 1U);
  EXPECT_EQ(reader.num_damaged_bytes(), kZeros);
  EXPECT_LT(peak_kilobytes(), before + 100'000);
}

TEST(LongJournal, IsReadInPieces) {
  const TemporaryDirectory directory;
  const fs::path path = directory / "journal";
  constexpr std::uint64_t kNum = 60'000;
  {
    std::ofstream file(path, std::ios::binary);
    for (std::uint64_t i = 0; i < kNum; ++i) {
      file << frame(i);
      if (i % 1000 == 0) file << std::string(5000, 'A');
    }
  }
  JournalReader reader(path);
  std::uint64_t num_frames = 0;
  int num_calls = 1;
  while (reader.read(
      [&](JournalDecoder&, std::uint64_t) { ++num_frames; }, 1 << 20U))
    ++num_calls;
  EXPECT_EQ(num_frames, kNum);
  EXPECT_EQ(reader.num_damaged_bytes(), 59 * 5000U + 5000U);
  EXPECT_GT(num_calls, 1);
}

// What RunHistory is, without thought for the time that it takes.
struct PlainHistory {
  std::map<std::string, std::vector<Point>> series;
  std::vector<RunHistory::Event> events;
  std::vector<double> sessions;
  std::vector<RunHistory::LostTime> lost_times;

  void add(const JournalEntry& entry) {
    if (std::holds_alternative<JournalSession>(entry.content)) {
      sessions.push_back(entry.time);
    } else if (std::holds_alternative<JournalRewind>(entry.content)) {
      drop_after(*entry.step, entry.time);
    } else if (const auto* event = std::get_if<JournalEvent>(&entry.content)) {
      events.push_back({entry.step, entry.time, *event, std::nullopt});
    } else {
      for (const auto& [name, value] :
           std::get<JournalScalars>(entry.content).scalars)
        add_point(series[name], *entry.step, entry.time, value);
    }
  }
  void add_point(
      std::vector<Point>& points,
      std::int64_t step,
      double time,
      double value) {
    double begin = kInfinity;
    while (!points.empty() && points.back().session < sessions.size() &&
           points.back().step >= step) {
      begin = std::min(begin, points.back().time);
      points.pop_back();
    }
    if (begin < kInfinity) note_lost({begin, sessions.back()});
    const Point point{step, time, value, sessions.size()};
    auto place = std::find_if(points.begin(), points.end(), [&](const auto& p) {
      return p.step >= step;
    });
    if (place != points.end() && place->step == step) {
      *place = point;
    } else {
      points.insert(place, point);
    }
  }
  void drop_after(std::int64_t step, double time) {
    RunHistory::LostTime lost{
        kInfinity, sessions.empty() ? time : sessions.back()};
    const auto note = [&](double of_step) {
      lost.begin = std::min(lost.begin, of_step);
      if (of_step >= lost.end) lost.end = time;
    };
    for (auto& [name, points] : series) {
      for (; !points.empty() && points.back().step > step; points.pop_back())
        note(points.back().time);
    }
    std::erase_if(events, [&](const auto& event) {
      const bool is_later = event.step && *event.step > step;
      if (is_later) note(event.time);
      return is_later;
    });
    if (lost.begin < kInfinity) note_lost(lost);
  }
  void note_lost(RunHistory::LostTime lost) {
    if (!lost_times.empty() && lost_times.back().end == lost.end) {
      lost.begin = std::min(lost.begin, lost_times.back().begin);
      lost_times.back() = lost;
    } else {
      lost_times.push_back(lost);
    }
  }
  void drop_samples() {
    std::erase_if(events, [&](const auto& event) {
      return event.event.kind == journal_kind::kSystem &&
          std::any_of(
                 lost_times.begin(), lost_times.end(), [&](const auto& lost) {
                   return lost.has(event.time);
                 });
    });
  }
  [[nodiscard]] std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const auto& each : events) names.push_back(each.event.name);
    return names;
  }
};

JournalEntry any_entry(double time, int number) {
  const auto step = *rc::gen::inRange<std::int64_t>(0, 8);
  switch (*rc::gen::inRange(0, 9)) {
    case 0:
      return session(time);
    case 1:
      return {time, step, JournalRewind{}};
    case 2:
      return {
          time,
          step,
          JournalEvent{"text", std::to_string(number), "text/plain", ""}};
    case 3:
      return {
          time,
          std::nullopt,
          JournalEvent{"system", std::to_string(number), "text/plain", ""}};
    default:
      return {
          time,
          step,
          JournalScalars{
              {{*rc::gen::element<std::string>("a", "b", "c"), 1.0 * number}}}};
  }
}

TEST(LongJournal, HasTheHistoryThatAPlainReaderFinds) {
  EXPECT_TRUE(rc::check([] {
    RunHistory history;
    PlainHistory plain;
    const auto num_entries = *rc::gen::inRange(0, 60);
    for (int i = 0; i < num_entries; ++i) {
      const JournalEntry entry = any_entry(i, i);
      history.add(entry);
      plain.add(entry);
      if (*rc::gen::inRange(0, 4) == 0) history.settle();
    }
    history.settle();
    plain.drop_samples();
    RC_ASSERT(history.series() == plain.series);
    RC_ASSERT(history.lost_times() == plain.lost_times);
    std::vector<std::string> names;
    for (const auto& each : history.events()) names.push_back(each.event.name);
    RC_ASSERT(names == plain.names());
  }));
}

}  // namespace long_journal_test
}  // namespace accelerate::detail
