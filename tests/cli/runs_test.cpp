#include <filesystem>
#include <limits>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/files/files.h"
#include "cli/run_journal.h"
#include "cli/runs/figures.h"
#include "cli/runs/run_record.h"
#include "cli/runs/text_table.h"
#include "cli/tool.h"
#include "support/temporary_directory.h"

namespace accelerate {
namespace runs_test {

using ::testing::HasSubstr;
using testing::run_tool;
using testing::RunJournal;
using testing::ToolResult;
namespace fs = std::filesystem;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
const std::map<std::string, std::string> kUtc{{"TZ", "UTC"}};

detail::JournalEvent json(std::string kind, std::string body) {
  return {std::move(kind), "", "application/json", std::move(body)};
}

class Runs : public ::testing::Test {
 protected:
  Runs() {
    RunJournal first(directory_ / "digits/a");
    first
        .session(
            1000,
            {.command = {"./train", "--lr", "0.1"},
             .host = "here",
             .num_processes = 2})
        .event(1000, {}, json("config", R"({"lr": 0.1, "net": {"width": 8}})"))
        .scalars(1001, 0, {{"loss", 2}, {"accuracy", 0.25}})
        .scalars(1002, 1, {{"loss", 0.5}, {"accuracy", 0.75}})
        .scalars(1063, 2, {{"loss", 1}, {"accuracy", 0.5}});
    first.event(1063, 2, detail::checkpoint_event("checkpoints/0"))
        .event(1063, 2, detail::warning_event("nearly full"))
        .write();
    RunJournal second(directory_ / "digits/b");
    second
        .session(
            2000,
            {.command = {"./train", "--lr", "0.2"},
             .host = "here",
             .num_processes = 2})
        .event(2000, {}, json("config", R"({"lr": 0.2, "net": {"width": 8}})"))
        .scalars(2001, 0, {{"loss", kInfinity}})
        .write();
  }
  [[nodiscard]] std::string project() const {
    return (directory_.path() / "digits").string();
  }
  ToolResult runs(const std::vector<std::string>& words) const {
    std::vector<std::string> all{"runs"};
    all.insert(all.end(), words.begin(), words.end());
    return run_tool(all, kUtc);
  }

  testing::TemporaryDirectory directory_;
};

TEST_F(Runs, AreListedWithTheirLoss) {
  const ToolResult result = runs({"list", project()});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(
      result.out,
      "run  began                took        step  last value  notes\n"
      "a    1970-01-01 00:16:40  1 min 03 s     2  loss 1\n"
      "b    1970-01-01 00:33:20  1.0 s          0  loss inf\n");
}

// The time between two processes of a run is not the run's.
TEST_F(Runs, TakeAsLongAsTheirProcessesRan) {
  RunJournal journal(directory_ / "again");
  journal.session(1000, {}).scalars(1010, 0, {{"loss", 2}}).write();
  journal.session(5000, {}).scalars(5020, 1, {{"loss", 1}}).write();
  const std::string path = directory_ / "again";
  EXPECT_EQ(
      runs({"list", path}).out,
      "run    began                took    step  last value  notes\n"
      "again  1970-01-01 00:16:40  30.0 s     1  loss 1      resumed once\n");
  journal.session(9000, {}).write();
  EXPECT_THAT(runs({"list", path}).out, HasSubstr("  resumed 2 times\n"));
}

TEST_F(Runs, AreShownWithAllThatTheyLogged) {
  const ToolResult result = runs({"show", project() + "/a"});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(
      result.out.substr(result.out.find('\n') + 1),
      "began 1970-01-01 00:16:40, last entry 1970-01-01 00:17:43, 1 process\n"
      "\n"
      "setting        value\n"
      "lr             0.1\n"
      "net/width      8\n"
      "num_processes  2\n"
      "host           here\n"
      "command        ./train --lr 0.1\n"
      "\n"
      "figure    points  min      max      last\n"
      "accuracy       3  0.25 @0  0.75 @1  0.5 @2\n"
      "loss           3  0.5 @1   2 @0     1 @2\n"
      "\n"
      "event       step  time                 text\n"
      "checkpoint     2  1970-01-01 00:17:43  checkpoints/0\n"
      "warning        2  1970-01-01 00:17:43  nearly full\n");
}

TEST_F(Runs, AreComparedByWhatDiffers) {
  const ToolResult result = runs({"compare", project()});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(
      result.out,
      "setting  a                 b\n"
      "lr       0.1               0.2\n"
      "command  ./train --lr 0.1  ./train --lr 0.2\n"
      "3 other settings are equal\n"
      "\n"
      "figure         a        b\n"
      "best accuracy  0.75 @1  -\n"
      "last accuracy  0.5 @2   -\n"
      "best loss      0.5 @1   inf @0\n"
      "last loss      1 @2     inf @0\n");
}

TEST_F(Runs, AreExportedAsCsvWithExactValues) {
  const ToolResult result =
      runs({"export", project() + "/a", project() + "/b"});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(
      result.out,
      "run,name,step,time,value\n"
      "a,accuracy,0,1001,0.25\n"
      "a,accuracy,1,1002,0.75\n"
      "a,accuracy,2,1063,0.5\n"
      "a,loss,0,1001,2\n"
      "a,loss,1,1002,0.5\n"
      "a,loss,2,1063,1\n"
      "b,loss,0,2001,inf\n");
}

TEST_F(Runs, AreExportedAsJsonIntoAFile) {
  const std::string file = directory_ / "all.json";
  const ToolResult result =
      runs({"export", project(), "--format", "json", "-o", file});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.out, "");
  const auto json = nlohmann::json::parse(detail::read_file(file));
  EXPECT_EQ(json[0]["name"], "a");
  EXPECT_EQ(json[0]["settings"]["net/width"], "8");
  EXPECT_EQ(
      json[0]["series"]["loss"],
      nlohmann::json::parse(
          R"({"step":[0,1,2],"time":[1001.0,1002.0,1063.0],"value":[2.0,0.5,1.0]})"));
  EXPECT_EQ(
      json[1]["series"]["loss"]["value"], nlohmann::json::array({nullptr}));
  EXPECT_EQ(json[0]["events"][1]["name"], "checkpoints/0");
}

TEST_F(Runs, SayWhatToGiveWhereThereIsNone) {
  fs::create_directories(directory_ / "empty");
  const ToolResult result = runs({"list", directory_ / "empty"});
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(
      result.err,
      HasSubstr("pass the directory of a run or of its project, which holds "
                "RUN/journal"));
  EXPECT_THAT(
      runs({"list", directory_ / "missing"}).err,
      HasSubstr("No such file or directory"));
  EXPECT_THAT(
      runs({"compare", project() + "/a"}).err,
      HasSubstr("there is only one run"));
}

TEST_F(Runs, WithOneNameInTwoProjectsAreToldApart) {
  RunJournal(directory_ / "letters/a").scalars(1, 0, {{"loss", 1}}).write();
  const auto found = cli::find_runs({directory_.path().string()});
  std::vector<std::string> names;
  for (const auto& place : found) names.push_back(place.name);
  EXPECT_THAT(names, ::testing::ElementsAre("digits/a", "b", "letters/a"));
  // A run that is given twice is listed once.
  EXPECT_EQ(
      cli::find_runs({project(), project() + "/b", project() + "/b/journal"})
          .size(),
      2U);
}

TEST_F(Runs, TakeFiguresAndTextsFromMixedValues) {
  RunJournal journal(directory_ / "mixed");
  journal.event(5, 7, detail::values_event("values", {}));
  journal.event(
      5,
      7,
      json(
          "values",
          R"({"epoch": 3, "eval": {"f1": 0.5, "tags": [1]}, "note": "hi", "big": {"__float__": "inf"}})"));
  journal.event(6, {}, json("system", R"({"cpu_percent": 50})"));
  journal.event(7, {}, json("system", R"({"cpu_percent": 60})"));
  journal.event(8, {}, detail::ranks_event({{0, 7, 2.5, 100}, {1, 6, 2, 90}}));
  journal.write();
  cli::RunRecord run({"mixed", directory_ / "mixed"});
  ASSERT_TRUE(run.update());
  ASSERT_EQ(run.series().size(), 3U);
  EXPECT_EQ(run.series().at("epoch")[0].step, 7);
  EXPECT_EQ(run.series().at("eval/f1")[0].value, 0.5);
  EXPECT_EQ(run.series().at("big")[0].value, kInfinity);
  ASSERT_NE(run.last_event("text", "note"), nullptr);
  EXPECT_EQ(run.last_event("text", "note")->event.body, "hi");
  ASSERT_EQ(run.system().at("cpu_percent").size(), 2U);
  EXPECT_EQ(run.system().at("cpu_percent")[1].time, 7);
  ASSERT_EQ(run.ranks().size(), 1U);
  EXPECT_EQ(run.ranks()[0].ranks[1], (detail::JournalRank{1, 6, 2, 90}));
  EXPECT_FALSE(run.update());
}

TEST_F(Runs, LeavePicturesInTheJournalUntilTheyAreAskedFor) {
  RunJournal journal(directory_ / "pictures");
  const std::string large(3 << 20, 'x');
  journal.event(5, 1, detail::image_event("small", {}, "png")).write();
  journal.event(6, 2, detail::image_event("large", {}, large))
      .event(6, 2, detail::figure_event("plot", "<svg/>"))
      .event(6, 2, detail::text_event("note", "hi"))
      .write();
  cli::RunRecord run({"pictures", directory_ / "pictures"});
  ASSERT_TRUE(run.update());
  ASSERT_EQ(run.events().size(), 4U);
  for (std::size_t i = 0; i < 3; ++i)
    EXPECT_EQ(run.events()[i].event.body, "") << i;
  EXPECT_EQ(run.body_of(run.events()[0]), "png");
  EXPECT_TRUE(run.body_of(run.events()[1]) == large);
  EXPECT_EQ(run.body_of(run.events()[2]), "<svg/>");
  EXPECT_EQ(run.body_of(run.events()[3]), "hi");
  const auto exported = nlohmann::json::parse(
      runs({"export", directory_ / "pictures", "--format", "json"}).out);
  EXPECT_EQ(exported[0]["events"][1]["num_bytes"], 3 << 20);
}

TEST_F(Runs, DropSamplesOfWorkThatWasLost) {
  RunJournal journal(directory_ / "resumed");
  const auto sample = [&](double time, std::int64_t step) {
    journal.event(time, {}, detail::system_event({{"cpu_percent", time}}))
        .event(time, {}, detail::ranks_event({{0, step, 1, 2}}));
  };
  journal.session(0, {}).scalars(1, 1, {{"loss", 1}});
  sample(1.5, 1);
  journal.scalars(2, 2, {{"loss", 2}});
  sample(2.5, 2);
  journal.write();
  cli::RunRecord run({"resumed", directory_ / "resumed"});
  ASSERT_TRUE(run.update());
  EXPECT_EQ(run.ranks().size(), 2U);
  journal.session(10, {}).rewind(10, 1);
  sample(10.5, 1);
  journal.scalars(11, 2, {{"loss", 3}}).write();
  ASSERT_TRUE(run.update());
  ASSERT_EQ(run.ranks().size(), 2U);
  EXPECT_EQ(run.ranks()[1].time, 10.5);
  using Point = cli::RunRecord::Point;
  EXPECT_EQ(
      run.system().at("cpu_percent"),
      (std::vector<Point>{{0, 1.5, 1.5, 0}, {1, 10.5, 10.5, 0}}));
}

TEST(Figures, KnowWhichValuesAreBetter) {
  using cli::Better;
  for (const char* name : {"loss", "train_loss", "eval/ppl", "valError"})
    EXPECT_EQ(cli::better_values(name), Better::lower) << name;
  for (const char* name :
       {"accuracy", "eval/top1", "testF1", "tokens_per_second"})
    EXPECT_EQ(cli::better_values(name), Better::higher) << name;
  for (const char* name : {"lr", "lossless", "person"})
    EXPECT_EQ(cli::better_values(name), Better::unknown) << name;
}

TEST(TextTable, AlignsNumbersToTheRightAndCountsCharacters) {
  cli::TextTable table({"a", "n", "b"});
  table.add({"\xc3\xa9t\xc3\xa9", "1", "x\n"});
  table.add({"y", "100", ""});
  EXPECT_EQ(
      table.text(" "),
      " a      n  b\n"
      " \xc3\xa9t\xc3\xa9    1  x\\n\n"
      " y    100\n");
}

}  // namespace runs_test
}  // namespace accelerate
