#include "cli/config/questions.h"

#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <accelerate/error.h>

#include "config/files/config_file.h"
#include "support/expect_error.h"

namespace accelerate::cli {
namespace questions_test {

using testing::expect_error;
using ::testing::HasSubstr;

struct Conversation {
  Answers answers;
  std::string said;
};

Conversation talk(
    const std::vector<Question>& questions,
    const std::string& lines) {
  std::istringstream in(lines);
  std::ostringstream out;
  Answers answers = ask(questions, in, out);
  return {std::move(answers), out.str()};
}

const std::vector<Question>& three() {
  static const std::vector<Question> questions{
      {"many", "How many", 1, {}, {}, {}},
      {"kind",
       "Which",
       "b",
       {{"the first", "a"}, {"the second", "b"}},
       [](const Answers& answers) { return answers["many"] > 1; },
       {}},
      {"sure", "Are you sure", false, {}, {}, {}}};
  return questions;
}

TEST(Ask, TakesDefaultsForEmptyLines) {
  const auto [answers, said] = talk(three(), "\n\n");
  EXPECT_EQ(answers, Answers({{"many", 1}, {"sure", false}}));
  EXPECT_EQ(said, "How many [1]: Are you sure [yes/NO]: ");
}

TEST(Ask, AsksOnlyWhatAppliesAndTakesNumbersOrWords) {
  EXPECT_EQ(
      talk(three(), "3\n1\nyes\n").answers,
      Answers({{"many", 3}, {"kind", "a"}, {"sure", true}}));
  EXPECT_EQ(
      talk(three(), "3\nThe Second\nno\n").answers,
      Answers({{"many", 3}, {"kind", "b"}, {"sure", false}}));
}

TEST(Ask, ExplainsAnInvalidAnswerAndAsksAgain) {
  const auto [answers, said] = talk(three(), "two\n2\n7\n1\nperhaps\ny\n");
  EXPECT_EQ(answers, Answers({{"many", 2}, {"kind", "a"}, {"sure", true}}));
  EXPECT_THAT(said, HasSubstr("Please enter a whole number.\nHow many [1]: "));
  EXPECT_THAT(said, HasSubstr("Please enter a number from 1 to 2.\n"));
  EXPECT_THAT(said, HasSubstr("Please enter yes or no.\n"));
}

TEST(Ask, GoesBack) {
  EXPECT_EQ(
      talk(three(), "<\n3\n1\n<\n<\n1\nyes\n").answers,
      Answers({{"many", 1}, {"sure", true}}));
}

TEST(Ask, StopsWithoutAResultWhenTheAnswersEnd) {
  expect_error<ConfigError>(
      [] { talk(three(), "3\n"); }, "nothing was written");
}

std::string file_of(const std::string& lines, int num_devices = 0) {
  return detail::write_config(
      config_of_answers(talk(config_questions(num_devices), lines).answers),
      false);
}

TEST(ConfigQuestions, AnsweredByEmptyLinesGiveOneProcess) {
  const std::string file = file_of(std::string(12, '\n'));
  EXPECT_THAT(file, HasSubstr("distributed_type: 'NO'\n"));
  EXPECT_THAT(file, HasSubstr("num_processes: 1\n"));
  EXPECT_THAT(file, HasSubstr("use_cpu: true\n"));
}

TEST(ConfigQuestions, GiveAFileThatLaunchTakes) {
  // Several on the CPU; one machine; debug; no mpirun, no Python, no FSDP; 4.
  const std::string file = file_of("2\n\nyes\nno\nno\nno\n4\n\nbf16\n");
  const auto source =
      detail::source_from_config(detail::parse_config(file, "x.yaml"));
  const std::array sources{source};
  const detail::Settings settings = detail::resolve(sources);
  EXPECT_EQ(settings.integer("num_processes"), 4);
  EXPECT_TRUE(settings.boolean("use_cpu"));
  EXPECT_TRUE(settings.boolean("debug"));
  EXPECT_EQ(settings.text("mixed_precision"), "bf16");
  EXPECT_EQ(settings.text("distributed_type"), "MULTI_CPU");
}

TEST(ConfigQuestions, WriteFsdpAndSeveralMachines) {
  const std::string file = file_of(
      // GPUs, 2 machines, this is 1, address, port, one network, no debug
      "5\n2\n1\n10.0.0.7\n\n\n\n"
      // not for Python; no DeepSpeed; FSDP 2, reshard, no offload
      "\n\nyes\n\n\n\n"
      // units of a size, state dicts, loading, checkpointing, no mesh
      "2\n1000\n\n\n\n\n"
      // 16 processes, all devices, no affinity, precision
      "16\n\n\n\n",
      8);
  EXPECT_THAT(file, HasSubstr("distributed_type: FSDP\n"));
  EXPECT_THAT(file, HasSubstr("  fsdp_version: 2\n"));
  EXPECT_THAT(file, HasSubstr("  fsdp_min_num_params: 1000\n"));
  EXPECT_THAT(file, HasSubstr("main_process_ip: 10.0.0.7\n"));
  EXPECT_THAT(file, HasSubstr("machine_rank: 1\n"));
  EXPECT_THAT(file, HasSubstr("num_processes: 16\n"));
}

}  // namespace questions_test
}  // namespace accelerate::cli
