#include <accelerate/logger.h>

#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <accelerate/error.h>

#include "support/expect_error.h"

namespace accelerate {
namespace logger_test {

using Lines = std::vector<std::string>;

// Collects what the ranks of a world log in one list.
class World {
 public:
  explicit World(int size, LogLevel level = LogLevel::info) : size_(size) {
    for (int rank = 0; rank < size; ++rank) {
      loggers_.emplace_back(
          detail::LoggerPlace{
              .logger = Logger(
                  [this](const LogRecord& record) {
                    lines_.push_back(format_log_line(record));
                  },
                  level),
              .rank = rank,
              .size = size,
              .barrier = [this] { ++num_barriers_; }},
          "train",
          level);
    }
  }

  NamedLogger& operator[](int rank) {
    return loggers_[static_cast<std::size_t>(rank)];
  }
  Lines take() { return std::exchange(lines_, {}); }
  [[nodiscard]] int num_barriers() const { return num_barriers_; }
  [[nodiscard]] int size() const { return size_; }

 private:
  int size_;
  std::vector<NamedLogger> loggers_;
  Lines lines_;
  int num_barriers_ = 0;
};

TEST(NamedLogger, FillsItsPlacesAndNamesTheRank) {
  World world(1);
  world[0].info("epoch {}: loss {}", 3, 0.25);
  world[0].critical("50% of {{}}");
  EXPECT_EQ(
      world.take(),
      (Lines{
          "info: train: [RANK 0] epoch 3: loss 0.25",
          "critical: train: [RANK 0] 50% of {}"}));
}

TEST(NamedLogger, LogsOnRank0UnlessAskedForAll) {
  World world(2);
  for (int rank = 0; rank < 2; ++rank) {
    world[rank].error("once");
    world[rank].error({.main_process_only = false}, "all");
  }
  EXPECT_EQ(
      world.take(),
      (Lines{
          "error: train: [RANK 0] once",
          "error: train: [RANK 0] all",
          "error: train: [RANK 1] all"}));
}

TEST(NamedLogger, DropsWhatIsBelowItsLevel) {
  World world(1);
  world[0].debug("quiet");
  EXPECT_FALSE(world[0].is_enabled(LogLevel::debug));
  EXPECT_TRUE(world[0].is_enabled(LogLevel::info));
  world[0].set_level(LogLevel::off);
  world[0].critical("quiet");
  EXPECT_EQ(world.take(), Lines{});
}

TEST(NamedLogger, WaitsForEachRankInOrderEvenOnRank0Only) {
  World world(3);
  world[1].info({.in_order = true}, "mine");
  EXPECT_EQ(world.take(), Lines{"info: train: [RANK 1] mine"});
  EXPECT_EQ(world.num_barriers(), 3);
  world[1].debug({.in_order = true}, "quiet");
  EXPECT_EQ(world.num_barriers(), 3);
}

TEST(NamedLogger, WarnsOnceOfEachMessage) {
  World world(1);
  const NamedLogger copy = world[0];
  world[0].warning_once("slow");
  copy.warning_once("slow");
  copy.warning_once("{}", "slow");
  copy.warning_once("rank {}", 1);
  copy.warning_once({.main_process_only = false}, "slow");
  EXPECT_EQ(
      world.take(),
      (Lines{
          "warning: train: [RANK 0] slow",
          "warning: train: [RANK 0] rank 1",
          "warning: train: [RANK 0] slow"}));
}

TEST(LogLevels, AreThoseOfTheLongestName) {
  Logger logger;
  logger.set_level(LogLevel::error);
  logger.set_levels(
      parse_log_levels(" data=info, data.loading = DEBUG,,x=off"));
  EXPECT_EQ(logger.level("data"), LogLevel::info);
  EXPECT_EQ(logger.level("data.order"), LogLevel::info);
  EXPECT_EQ(logger.level("data.loading.pool"), LogLevel::debug);
  EXPECT_EQ(logger.level("database"), LogLevel::error);
  EXPECT_EQ(logger.level("x"), LogLevel::off);
}

TEST(LogLevels, DecideWhichAreasAreLogged) {
  Lines seen;
  Logger logger(
      [&](const LogRecord& record) { seen.emplace_back(record.message); },
      LogLevel::warning);
  logger.set_levels({{"comm", LogLevel::debug}, {"train", LogLevel::off}});
  logger.log(LogLevel::debug, "comm", "shown");
  logger.log(LogLevel::info, "data", "not visible");
  logger.log(LogLevel::critical, "train", "not visible");
  EXPECT_EQ(seen, Lines{"shown"});
}

TEST(LogLevels, RefuseTextWithoutNameAndLevel) {
  for (const char* text : {"comm", "=debug", "comm=loud", "comm debug"}) {
    testing::expect_error<ConfigError>(
        [&] { (void)parse_log_levels(text); }, "[config]");
  }
}

TEST(LogSink, ColorsLinesByLevelIfAsked) {
  const auto written = [](const LogLineOptions& options, LogLevel level) {
    ::testing::internal::CaptureStderr();
    standard_error_sink(options)({.level = level, .area = {}, .message = "m"});
    return ::testing::internal::GetCapturedStderr();
  };
  EXPECT_EQ(
      written({.colors = true}, LogLevel::warning),
      "\x1b[33m[accelerate] warning: m\x1b[0m\n");
  EXPECT_EQ(
      written({.colors = true}, LogLevel::info), "[accelerate] info: m\n");
  EXPECT_EQ(written({}, LogLevel::error), "[accelerate] error: m\n");
}

TEST(LogJson, HasOneObjectPerRecord) {
  const LogRecord record{
      .level = LogLevel::warning,
      .area = "train",
      .message = "a \"b\"\n\xff",
      .rank = 2,
      .is_of_library = false};
  EXPECT_EQ(
      format_log_json(record, 12.5),
      "{\"time\":12.5,\"level\":\"warning\",\"name\":\"train\",\"rank\":2,"
      "\"message\":\"a \\\"b\\\"\\n\xEF\xBF\xBD\"}");
  const auto json = nlohmann::json::parse(
      format_log_json({.area = "comm", .message = "m"}, 0));
  EXPECT_EQ(json["name"], "accelerate.comm");
  EXPECT_TRUE(json["rank"].is_null());
}

}  // namespace logger_test
}  // namespace accelerate
