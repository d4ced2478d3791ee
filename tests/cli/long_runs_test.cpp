// Runs that would take hours to show if any step took time out of proportion to
// their size.
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <accelerate/error.h>

#include "cli/run_journal.h"
#include "cli/runs/run_export.h"
#include "cli/runs/run_record.h"
#include "cli/tool.h"
#include "cli/watch/report_page.h"
#include "cli/watch/watched_runs.h"
#include "format/journal/journal_json.h"
#include "format/journal/journal_reader.h"
#include "support/temporary_directory.h"
#include "trackers/journal/journal_tracker.h"
#include "trackers/journal/replay.h"

namespace accelerate::cli {
namespace long_runs_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::run_tool;
using testing::RunJournal;

// With a search per name, each of these tests takes minutes.
constexpr int kMany = 40'000;

// A frame with that payload.
std::string frame_of(const std::string& payload) {
  const auto bytes_of = [](auto value) {
    return std::string(reinterpret_cast<const char*>(&value), sizeof value);
  };
  std::string frame = "ACJ1" +
      bytes_of(static_cast<std::uint32_t>(payload.size())) +
      bytes_of(std::uint64_t{0}) +
      bytes_of(XXH3_64bits(payload.data(), payload.size()));
  frame += bytes_of(XXH3_64bits(frame.data(), frame.size()));
  return frame + payload;
}

class LongRun : public ::testing::Test {
 protected:
  [[nodiscard]] std::string path() const { return directory_.path().string(); }
  std::vector<std::unique_ptr<RunRecord>> read() {
    return read_runs(
        {path()}, [this](const std::string& line) { lines_.push_back(line); });
  }

  testing::TemporaryDirectory directory_{testing::TemporaryDirectory::memory()};
  std::vector<std::string> lines_;
};

TEST_F(LongRun, MayHaveManySettings) {
  TrackedValues values;
  for (int i = 0; i < kMany; ++i)
    values.push_back({"setting_" + std::to_string(i), i});
  values.push_back({"setting_7", "the last one counts"});
  RunJournal journal(directory_ / "r");
  journal.event(1, {}, detail::values_event("config", values)).write();
  const auto runs = read();
  const auto settings = settings_of(*runs.at(0));
  ASSERT_EQ(settings.size(), static_cast<std::size_t>(kMany));
  EXPECT_EQ(settings[7].second, "the last one counts");
  EXPECT_THAT(report_page(runs), HasSubstr("\"setting_39999\":\"39999\""));
  EXPECT_THAT(to_export_json(runs), HasSubstr("\"setting_39999\": \"39999\""));
  const auto recorded = detail::recorded_run(
      detail::JournalReader(directory_ / "r" / "journal").read());
  ASSERT_EQ(recorded.config.size(), static_cast<std::size_t>(kMany));
  EXPECT_EQ(recorded.config[7].value, TrackedValue("the last one counts"));
}

TEST_F(LongRun, IsNoTableOfMoreCellsThanBytes) {
  std::string columns = "\"\"", rows = "[]";
  for (int i = 1; i < kMany; ++i) {
    columns += ",\"\"";
    rows += ",[]";
  }
  EXPECT_EQ(
      detail::read_table(
          "{\"columns\":[" + columns + "],\"rows\":[" + rows + "]}"),
      std::nullopt);
  const auto filled =
      detail::read_table(R"({"columns":["a","b"],"rows":[[1]]})");
  ASSERT_TRUE(filled);
  EXPECT_EQ(filled->rows, (std::vector<std::vector<TrackedValue>>{{1, {}}}));
}

// A copy of all values each time would take as long as making them.
TEST(JsonMembers, MoveTheirValuesWhenTheObjectGrows) {
  auto object = detail::JournalJson::object();
  detail::JsonMembers members;
  std::vector<const detail::JournalJson*> contents;
  for (int i = 0; i < 100; ++i) {
    auto& member = members.of(object, std::to_string(i));
    member = detail::JournalJson::array({i});
    if (i >= 50) contents.push_back(&member[0]);
  }
  for (int i = 100; i < 1000; ++i) members.of(object, std::to_string(i)) = i;
  ASSERT_EQ(object.size(), 1000U);
  for (int i = 50; i < 100; ++i)
    EXPECT_EQ(
        &object[std::to_string(i)][0],
        contents[static_cast<std::size_t>(i) - 50]);
}

TEST_F(LongRun, MayHaveManyFigures) {
  RunJournal journal(directory_ / "r");
  std::vector<detail::JournalScalars::Scalar> figures;
  TrackedValues mixed{{"text", "x"}};
  for (int i = 0; i < kMany / 2; ++i) {
    figures.push_back({"figure_" + std::to_string(i), 1});
    mixed.push_back({"mixed_" + std::to_string(i), 1});
  }
  journal.scalars(1, 0, figures)
      .event(1, 0, detail::values_event("values", mixed))
      .write();
  const auto runs = read();
  EXPECT_EQ(runs.at(0)->series().size(), static_cast<std::size_t>(kMany));
  EXPECT_THAT(report_page(runs), HasSubstr("\"figure_19999\""));
  EXPECT_THAT(to_export_json(runs), HasSubstr("\"mixed_19999\""));
}

TEST_F(LongRun, MayHaveLostItsSamplesAgainAndAgain) {
  RunJournal journal(directory_ / "r");
  for (int i = 0; i < kMany / 4; ++i) {
    journal.scalars(2.0 * i, 2, {{"loss", 1}})
        .event(2.0 * i + 1, {}, detail::system_event({{"cpu_percent", 1}}))
        .rewind(2.0 * i + 1.5, 1);
  }
  journal.event(1e9, {}, detail::system_event({{"cpu_percent", 2}})).write();
  const auto runs = read();
  EXPECT_EQ(runs.at(0)->system().at("cpu_percent").size(), 1U);
}

// One of several runs.
TEST_F(LongRun, ThatCannotBeReadLeavesTheOthersAlone) {
  RunJournal good(directory_ / "good");
  good.scalars(1, 3, {{"loss", 0.5}}).write();
  std::filesystem::create_directories(directory_ / "bad");
  std::ofstream(directory_ / "bad" / "journal", std::ios::binary)
      << frame_of(std::string("X") + std::string(9, '\0'));
  const auto runs = read();
  ASSERT_EQ(runs.size(), 1U);
  EXPECT_EQ(runs[0]->name(), "good");
  EXPECT_THAT(
      lines_,
      ElementsAre(HasSubstr("bad is left out: [format] a journal has "
                            "an entry of an unknown kind")));
  const auto listed = run_tool({"runs", "list", path()}, {});
  EXPECT_EQ(listed.code, 0);
  EXPECT_THAT(listed.out, HasSubstr("good"));
  EXPECT_THAT(listed.err, HasSubstr("bad is left out"));
  WatchedRuns watched({path()});
  watched.update();
  ASSERT_EQ(watched.runs().size(), 2U);
  EXPECT_THAT(watched.runs()[0]->problem(), HasSubstr("unknown kind"));
  EXPECT_EQ(watched.runs()[1]->series().size(), 1U);
}

// A program that reads while there is more comes to an end.
TEST_F(LongRun, HasNoMoreAfterAFailure) {
  RunJournal good(directory_ / "r");
  good.event(1, 1, detail::text_event("note", std::string(3 << 20, 'x')));
  good.write();
  std::ofstream(directory_ / "r" / "journal", std::ios::binary | std::ios::app)
      << frame_of(std::string("X") + std::string(3 << 20, '\0'));
  RunRecord run({"r", directory_ / "r"});
  ASSERT_TRUE(run.update(1));
  ASSERT_TRUE(run.has_more());
  bool has_failed = false;
  for (int i = 0; i < 10 && !has_failed; ++i) {
    try {
      run.update(1);
    } catch (const Error& error) {
      has_failed = true;
      EXPECT_THAT(error.what(), HasSubstr("unknown kind"));
    }
  }
  EXPECT_TRUE(has_failed);
  EXPECT_FALSE(run.has_more());
}

}  // namespace long_runs_test
}  // namespace accelerate::cli
