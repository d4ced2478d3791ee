#include "trackers/journal/replay.h"

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "format/journal/journal_kinds.h"
#include "format/journal/journal_reader.h"
#include "support/temporary_directory.h"
#include "trackers/journal/journal_tracker.h"

namespace accelerate {
namespace {
namespace replay_test {

using detail::JournalEntry;
using detail::JournalTracker;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

class Replay : public ::testing::Test {
 protected:
  std::unique_ptr<JournalTracker> open(const std::string& run = "run") {
    return std::make_unique<JournalTracker>(
        directory_ / run, "{}", detail::JournalWriterOptions{});
  }
  std::vector<JournalEntry> entries(const std::string& run = "run") {
    return detail::JournalReader(detail::journal_path(directory_ / run)).read();
  }
  detail::RecordedRun read(const std::string& run = "run") {
    return detail::recorded_run(entries(run));
  }

  testing::TemporaryDirectory directory_;
};

LogTime at(std::int64_t step) {
  return {step, 1'700'000'000.0 + static_cast<double>(step)};
}

/// "{'a': 1.0} at 3" for items that are values.
std::vector<std::string> lines(const detail::RecordedRun& run) {
  std::vector<std::string> result;
  for (const TrackedItem& item : run.items) {
    const auto& values = std::get<TrackedValues>(item.content);
    result.push_back(
        TrackedValue(values).str() + " at " +
        (item.time.step ? std::to_string(*item.time.step) : "none"));
  }
  return result;
}

TEST_F(Replay, FindsWhatWasLoggedWithItsTypesTimesAndSteps) {
  auto journal = open();
  journal->add(detail::project_event("digits"), {});
  journal->store_init_configuration({{"lr", 0.1}, {"epochs", 3}});
  const TrackedValues plain{{"loss", 0.5}, {"acc", 1.0}};
  const TrackedValues mixed{
      {"epoch", 3}, {"note", "x"}, {"ok", true}, {"both", {{"a", 1.5}}}};
  journal->log(plain, at(1), {});
  journal->log(mixed, at(2), {});
  journal->finish();
  const detail::RecordedRun run = read();
  EXPECT_EQ(run.project, "digits");
  EXPECT_EQ(run.config, (TrackedValues{{"lr", 0.1}, {"epochs", 3}}));
  ASSERT_EQ(run.items.size(), 2U);
  EXPECT_EQ(std::get<TrackedValues>(run.items[0].content), plain);
  EXPECT_EQ(std::get<TrackedValues>(run.items[1].content), mixed);
  EXPECT_EQ(run.items[1].time.seconds, at(2).seconds);
  EXPECT_EQ(run.items[1].time.step, 2);
}

TEST_F(Replay, FindsImagesTablesHistogramsFiguresAndArtifacts) {
  TrackedImages images{{2, 1, 2, 3}, "NHWC", false, "abcdefghijkl"};
  const TrackedTable table{{"x", "y"}, {{1, "a"}, {2.5, TrackedValue()}}};
  const TrackedHistogram histogram{{0, 1, 2}, {3, 4}, 0, 2, 7, 9, 7};
  auto journal = open();
  journal->log_images("out", images, at(1), {});
  journal->log_images("out", images, at(2), {});
  journal->log_table("t", table, at(2), {});
  journal->log_histogram("h", histogram, at(3), {});
  journal->log_figure("f", "<svg/>", at(4), {});
  journal->log_artifact("a.txt", "models");
  journal->finish();
  const detail::RecordedRun run = read();
  ASSERT_EQ(run.items.size(), 6U);
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(run.items[i].name, "out");
    EXPECT_EQ(std::get<TrackedImages>(run.items[i].content), images);
  }
  EXPECT_EQ(std::get<TrackedTable>(run.items[2].content), table);
  EXPECT_EQ(std::get<TrackedHistogram>(run.items[3].content), histogram);
  EXPECT_EQ(std::get<TrackedFigure>(run.items[4].content).svg, "<svg/>");
  EXPECT_EQ(
      std::get<TrackedArtifact>(run.items[5].content).directory, "models");
}

TEST_F(Replay, LeavesOutStepsThatARewindMadeVoid) {
  auto journal = open();
  for (int step = 1; step <= 4; ++step)
    journal->log({{"a", step * 1.0}}, at(step), {});
  journal->log_figure("f", "late", at(4), {});
  journal->rewind_to(2);
  for (int step = 3; step <= 5; ++step)
    journal->log({{"a", step * 10.0}}, at(step), {});
  journal->finish();
  EXPECT_THAT(
      lines(read()),
      ElementsAre(
          "{'a': 1.0} at 1",
          "{'a': 2.0} at 2",
          "{'a': 30.0} at 3",
          "{'a': 40.0} at 4",
          "{'a': 50.0} at 5"));
}

TEST_F(Replay, LeavesOutStepsThatALaterProcessRepeated) {
  for (const double factor : {1.0, 10.0}) {
    auto journal = open();
    for (int step = factor == 1 ? 1 : 2; step <= 3; ++step)
      journal->log({{"a", step * factor}, {"b", 0.5}}, at(step), {});
  }
  EXPECT_THAT(
      lines(read()),
      ElementsAre(
          "{'a': 1.0, 'b': 0.5} at 1",
          "{'a': 20.0, 'b': 0.5} at 2",
          "{'a': 30.0, 'b': 0.5} at 3"));
}

TEST_F(Replay, TakesTheLaterOfTwoConfigurations) {
  for (const int epochs : {3, 5}) {
    auto journal = open();
    journal->store_init_configuration({{"lr", 0.1}, {"epochs", epochs}});
  }
  EXPECT_EQ(read().config, (TrackedValues{{"lr", 0.1}, {"epochs", 5}}));
}

TEST_F(Replay, OfNothingIsNothing) {
  EXPECT_THAT(detail::recorded_run({}).items, IsEmpty());
}

TEST_F(Replay, FollowsARunThatMovedToAnEarlierJournal) {
  {
    auto first = open("first");
    for (int step = 1; step <= 3; ++step)
      first->log({{"a", step * 1.0}}, at(step), {});
  }
  auto second = open("second");
  second->store_init_configuration({{"lr", 0.5}});
  second->log({{"a", 20.0}}, at(2), {});
  second->move_to(directory_ / "first", "{}", 1);
  second->log({{"a", 30.0}}, at(3), {});
  second->finish();
  EXPECT_FALSE(std::filesystem::exists(directory_ / "second"));
  const detail::RecordedRun run = read("first");
  EXPECT_EQ(run.config, (TrackedValues{{"lr", 0.5}}));
  EXPECT_THAT(
      lines(run),
      ElementsAre("{'a': 1.0} at 1", "{'a': 20.0} at 2", "{'a': 30.0} at 3"));
}

TEST_F(Replay, KeepsADirectoryThatHasOtherFiles) {
  { auto first = open("first"); }
  auto second = open("second");
  second->move_to(directory_ / "first", "{}", std::nullopt);
  auto third = open("third");
  std::filesystem::create_directory(directory_ / "third" / "mine");
  second->finish();
  third->move_to(directory_ / "first", "{}", std::nullopt);
  EXPECT_TRUE(std::filesystem::exists(directory_ / "third" / "mine"));
  EXPECT_FALSE(std::filesystem::exists(directory_ / "third" / "journal"));
}

}  // namespace replay_test
}  // namespace
}  // namespace accelerate
