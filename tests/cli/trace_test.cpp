// trace merge.
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "cli/tool.h"
#include "support/temporary_directory.h"

namespace accelerate {
namespace trace_test {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::run_tool;
using testing::TemporaryDirectory;
using testing::ToolResult;
using Json = nlohmann::json;

class TraceMerge : public ::testing::Test {
 protected:
  void write(const std::string& name, const Json& content) const {
    std::ofstream(directory_.path() / name) << content.dump();
  }
  // The trace of a rank whose only event is at `ts` microseconds.
  static Json trace(int rank, std::int64_t base_ns, double ts) {
    return {
        {"baseTimeNanoseconds", base_ns},
        {"distributedInfo", {{"rank", rank}, {"world_size", 2}}},
        {"clockOffsetNanoseconds", 0},
        {"traceEvents",
         {{{"ph", "X"},
           {"name", "work"},
           {"pid", rank},
           {"tid", 1},
           {"ts", ts},
           {"dur", 2.5}}}}};
  }
  [[nodiscard]] ToolResult merge() const {
    return run_tool(
        {"trace", "merge", directory_.path(), "-o", output_.string()});
  }
  [[nodiscard]] Json merged() const {
    std::ifstream stream(output_);
    return Json::parse(stream).at("traceEvents");
  }

  TemporaryDirectory directory_;
  fs::path output_ = directory_.path() / "all.json";
};

TEST_F(TraceMerge, PutsRanksOnTheClockOfRank0) {
  // Rank 1 started 4 us later by its own clock, which is 1 us ahead of rank
  // 0's.
  write("profile_0.json", trace(0, 1'700'000'000'000'000'000, 10));
  Json other = trace(1, 1'700'000'000'000'004'000, 10);
  other["clockOffsetNanoseconds"] = 1000;
  write("profile_1.json", other);
  const ToolResult result = merge();
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  EXPECT_EQ(
      result.out, "2 events of 2 ranks merged into " + output_.string() + "\n");
  const Json events = merged();
  ASSERT_EQ(events.size(), 2U);
  EXPECT_EQ(events[0].at("pid"), 0);
  EXPECT_DOUBLE_EQ(events[0].at("ts"), 10);
  EXPECT_EQ(events[1].at("pid"), 1);
  EXPECT_DOUBLE_EQ(events[1].at("ts"), 13);
  EXPECT_DOUBLE_EQ(events[1].at("dur"), 2.5);
}

TEST_F(TraceMerge, BeginsWithTheFirstRankWhicheverItIs) {
  write("profile_0.json", trace(0, 9000, 1));
  write("profile_1.json", trace(1, 2000, 1));
  EXPECT_EQ(merge().code, 0);
  const Json events = merged();
  EXPECT_DOUBLE_EQ(events[0].at("ts"), 8);
  EXPECT_DOUBLE_EQ(events[1].at("ts"), 1);
}

TEST_F(TraceMerge, KeepsFlowsOfRanksApart) {
  for (int rank = 0; rank < 2; ++rank) {
    Json one = trace(rank, 0, 1);
    one["traceEvents"][0]["id"] = 7;
    write("profile_" + std::to_string(rank) + ".json", one);
  }
  EXPECT_EQ(merge().code, 0);
  const Json events = merged();
  EXPECT_THAT(
      (std::vector<std::string>{events[0].at("id"), events[1].at("id")}),
      ElementsAre("0.7", "1.7"));
}

TEST_F(TraceMerge, TakesTracesOfTorchAndSaysThatClocksWereNotCompared) {
  for (int rank = 0; rank < 2; ++rank) {
    Json one = trace(rank, 1000 * rank, 1);
    one.erase("clockOffsetNanoseconds");
    one["traceEvents"][0]["pid"] = 4711;
    write("profile_" + std::to_string(rank) + ".json", one);
  }
  const ToolResult result = merge();
  EXPECT_EQ(result.code, 0);
  EXPECT_THAT(
      result.err, HasSubstr("profile_1.json does not relate its clock"));
  const Json events = merged();
  EXPECT_EQ(events[1].at("pid"), 1);
  EXPECT_EQ(events[1].at("tid"), "4711 1");
  EXPECT_DOUBLE_EQ(events[1].at("ts"), 2);
}

TEST_F(TraceMerge, RefusesWhatItCannotMerge) {
  EXPECT_EQ(merge().code, 2);
  EXPECT_THAT(merge().err, HasSubstr("has no traces profile_<rank>.json"));
  write("profile_0.json", Json::object());
  EXPECT_THAT(merge().err, HasSubstr("not a trace in Chrome's format"));
  write("profile_0.json", trace(0, 0, 1));
  write("profile_1.json", trace(0, 0, 1));
  const ToolResult result = merge();
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.err, HasSubstr("are both from rank 0"));
  EXPECT_FALSE(fs::exists(output_));
}

TEST_F(TraceMerge, RefusesNestingThatItCouldNotPrint) {
  // Deep enough to overflow a stack.
  constexpr std::size_t kDepth = 1'000'000;
  std::ofstream(directory_.path() / "profile_0.json")
      << R"({"traceEvents":[{"args":)" << std::string(kDepth, '[')
      << std::string(kDepth, ']') << "}]}";
  const ToolResult result = merge();
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.err, HasSubstr("nested more than 512 deep"));
}

TEST_F(TraceMerge, TakesTimeInProportionToObjectsWithManyNames) {
  Json one = trace(0, 0, 1);
  // Comparing each name with all others would take half a minute.
  for (int i = 0; i < 100'000; ++i)
    one["traceEvents"][0]["args"]["argument " + std::to_string(i)] = i;
  write("profile_0.json", one);
  EXPECT_EQ(merge().code, 0);
  EXPECT_EQ(merged()[0].at("args"), one["traceEvents"][0]["args"]);
}

TEST_F(TraceMerge, TakesClocksThatAreFarApart) {
  constexpr std::int64_t kFirst = std::numeric_limits<std::int64_t>::min();
  constexpr std::int64_t kLast = std::numeric_limits<std::int64_t>::max();
  write("profile_0.json", trace(0, kFirst, 0));
  write("profile_1.json", trace(1, kLast, 0));
  EXPECT_EQ(merge().code, 0);
  EXPECT_DOUBLE_EQ(merged()[1].at("ts"), 18446744073709551.615);
  Json other = trace(1, kFirst, 0);
  other["clockOffsetNanoseconds"] = 1;
  write("profile_1.json", other);
  const ToolResult result = merge();
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(
      result.err,
      HasSubstr("profile_1.json must begin at a 64-bit number of nanoseconds"));
  // Times beyond 64 bits are none.
  other["baseTimeNanoseconds"] = std::numeric_limits<std::uint64_t>::max();
  other["clockOffsetNanoseconds"] = 0;
  write("profile_1.json", other);
  EXPECT_THAT(merge().err, HasSubstr("does not relate its clock"));
}

TEST_F(TraceMerge, MayBeRepeated) {
  write("profile_0.json", trace(0, 0, 1));
  EXPECT_EQ(merge().code, 0);
  // The merged trace is next to the inputs but is not one of them.
  EXPECT_EQ(merge().code, 0);
  EXPECT_EQ(merged().size(), 1U);
}

}  // namespace trace_test
}  // namespace accelerate
