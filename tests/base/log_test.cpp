#include <accelerate/log.h>

#include <vector>

#include <gtest/gtest.h>

#include <accelerate/error.h>

#include "support/expect_error.h"

namespace accelerate {
namespace log_test {

struct Collected {
  std::vector<std::string> lines;
  Logger logger{
      [this](const LogRecord& r) { lines.push_back(format_log_line(r)); },
      LogLevel::info};
};

TEST(LogTest, DropsWhatIsBelowItsLevel) {
  Collected seen;
  seen.logger.log(LogLevel::debug, "data", "quiet");
  seen.logger.log(LogLevel::warning, "data", "loud");
  seen.logger.set_level(LogLevel::off);
  seen.logger.log(LogLevel::error, "data", "never");
  EXPECT_EQ(
      seen.lines,
      std::vector<std::string>{"[accelerate] warning: [data] loud"});
}

TEST(LogTest, NamesTheRankAndLogsOncePerWorld) {
  Collected seen;
  seen.logger.set_rank(2);
  seen.logger.log_once_per_world(LogLevel::info, "", "not here");
  seen.logger.log(LogLevel::error, "", "here");
  seen.logger.set_rank(0);
  seen.logger.log_once_per_world(LogLevel::info, "", "here too");
  EXPECT_EQ(
      seen.lines,
      (std::vector<std::string>{
          "[accelerate rank 2] error: here",
          "[accelerate rank 0] info: here too"}));
}

TEST(LogTest, RefusesUnknownLevels) {
  EXPECT_EQ(parse_log_level("WARNING"), LogLevel::warning);
  testing::expect_error<ConfigError>(
      [] { parse_log_level("loud"); }, "\"loud\"");
}

}  // namespace log_test
}  // namespace accelerate
