#include "cli/launch/decision/launch_decision.h"

#include <array>
#include <filesystem>
#include <new>
#include <set>
#include <system_error>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <accelerate/error.h>

#include "cli/launch/decision/launch_plan.h"
#include "cli/processes/failure.h"
#include "config/files/config_file.h"
#include "config/settings.h"
#include "support/expect_error.h"
#include "support/option_samples.h"

namespace accelerate::cli {
namespace decision_test {

using detail::OptionSpec;
using detail::OptionUse;
using detail::Origin;
using ::testing::ElementsAre;
using testing::expect_error;
using testing::sample_of;

// The launcher reads every setting that the option page says it acts on.
TEST(OptionMarks, OfTheLauncherAreReadByIt) {
  // The command line handles these before or after the decision, or reads them
  // from the file.
  const std::set<std::string_view> elsewhere{
      "hostfile",
      "remote_shell",
      "deepspeed_hostfile",
      "deepspeed_exclusion_filter",
      "deepspeed_inclusion_filter",
      "deepspeed_multinode_launcher",
      "module",
      "no_python",
      "compute_environment",
      "distributed_type"};
  for (const OptionSpec& spec : detail::option_table()) {
    if (spec.use != OptionUse::launches || elsewhere.contains(spec.key))
      continue;
    detail::Source source{Origin::flag, {}};
    source.add("num_processes", "2", "test");
    source.add("num_machines", "2", "test");
    source.add("main_process_ip", "127.0.0.1", "test");
    source.add("main_process_port", "1234", "test");
    source.add(
        spec.key, spec.key == "machine_rank" ? "1" : sample_of(spec), "test");
    const std::array sources{source};
    const detail::Settings settings = detail::resolve(sources);
    Machine machine;
    machine.processors = {0, 1};
    const LaunchDecision decision =
        decide_launch(settings, nullptr, 1, ProgramKind::native);
    make_launch_plan(decision, settings, {}, machine, {"/bin/sh"});
    EXPECT_TRUE(settings.was_read(spec.key)) << spec.key;
  }
}

// Options that have no effect in programs of this library, except those with a
// single choice.
std::vector<std::string> options_without_effect() {
  std::vector<std::string> keys;
  for (const OptionSpec& spec : detail::option_table()) {
    const bool acts =
        spec.use == OptionUse::acts || spec.use == OptionUse::launches;
    if (!acts && !sample_of(spec).empty()) keys.emplace_back(spec.key);
  }
  return keys;
}

class OptionWithoutEffect : public ::testing::TestWithParam<std::string> {};

TEST_P(OptionWithoutEffect, IsReportedByTheLauncherWithItsOrigin) {
  const OptionSpec& spec = *detail::find_option(GetParam());
  const std::string flag(spec.flag);
  for (const auto& [origin, where] :
       {std::pair(Origin::flag, "flag " + flag),
        std::pair(Origin::environment, std::string("environment variable X")),
        std::pair(Origin::file, std::string("file run.yaml"))}) {
    detail::Source source{origin, {}};
    source.add(spec.key, sample_of(spec), where);
    const std::array sources{source};
    const detail::Settings settings = detail::resolve(sources);
    if (origin == Origin::file &&
        detail::is_written_by_default(
            spec, detail::parse_option(spec, sample_of(spec)))) {
      EXPECT_THAT(launch_warnings(settings, "/bin/train"), ElementsAre());
      continue;
    }
    const std::string words = GetParam() + " (" + where + ")";
    EXPECT_THAT(
        launch_warnings(settings, "/bin/train"),
        ElementsAre(::testing::EndsWith(": " + words)));
    EXPECT_THAT(launch_warnings(settings, "python3"), ElementsAre());
  }
}

INSTANTIATE_TEST_SUITE_P(
    Table,
    OptionWithoutEffect,
    ::testing::ValuesIn(options_without_effect()),
    [](const ::testing::TestParamInfo<std::string>& key) { return key.param; });

TEST(OptionOfOneChoice, RefusesEverythingElse) {
  std::vector<std::string> keys;
  for (const OptionSpec& spec : detail::option_table()) {
    if (!sample_of(spec).empty()) continue;
    keys.emplace_back(spec.key);
    expect_error<ConfigError>(
        [&] { detail::parse_option(spec, "other"); },
        std::string(spec.key) + " is \"other\", but must be one of " +
            std::string(spec.limits));
  }
  EXPECT_THAT(
      keys,
      ElementsAre(
          "parallelism_config_cp_backend", "parallelism_config_sp_backend"));
}

TEST(Decision, LetsNativeProgramsShardOnTheCpuOnly) {
  detail::Source source{Origin::flag, {}};
  source.add("use_cpu", "true", "flag --cpu");
  source.add("use_fsdp", "true", "flag --use_fsdp");
  const std::array sources{source};
  const detail::Settings settings = detail::resolve(sources);
  const LaunchDecision decision =
      decide_launch(settings, nullptr, 1, ProgramKind::native);
  EXPECT_EQ(decision.paradigm, Paradigm::fsdp);
  EXPECT_TRUE(decision.uses_cpu);
  expect_error<ConfigError>(
      [&] { decide_launch(settings, nullptr, 1); }, "exclude each other");
}

// Found by fuzzing: only a boolean was read.
TEST(Decision, TakesUseCpuOfAFileInEverySpelling) {
  for (const auto& [written, uses_cpu] :
       {std::pair("true", true),
        std::pair("'yes'", true),
        std::pair("1", true),
        std::pair("false", false),
        std::pair("'no'", false),
        std::pair("0", false),
        std::pair("", false)}) {
    const detail::ConfigDocument file = detail::parse_config(
        std::string(
            "distributed_type: MULTI_CPU\nnum_processes: 2\nuse_cpu: ") +
            written + "\n",
        "run.yaml");
    const std::array sources{detail::source_from_config(file)};
    const LaunchDecision decision =
        decide_launch(detail::resolve(sources), &file, 1);
    EXPECT_EQ(decision.uses_cpu, uses_cpu) << written;
    EXPECT_EQ(decision.shares_cores, uses_cpu) << written;
  }
}

TEST(Failure, NamesTheLimitAndWhatToDo) {
  const auto describe = [](auto error) {
    return describe_failure(std::make_exception_ptr(error));
  };
  EXPECT_THAT(
      describe(std::system_error(
          std::make_error_code(std::errc::resource_unavailable_try_again))),
      ::testing::HasSubstr("raise the limit (ulimit -u"));
  EXPECT_THAT(describe(std::bad_alloc()), ::testing::HasSubstr("ulimit -v"));
  EXPECT_EQ(
      describe(std::filesystem::filesystem_error(
          "status",
          "/root/x",
          std::make_error_code(std::errc::permission_denied))),
      "/root/x cannot be used: Permission denied");
  EXPECT_EQ(describe(ConfigError("[launch] no")), "[launch] no");
  EXPECT_EQ(describe_start_problem(ENOENT), "No such file or directory");
}

}  // namespace decision_test
}  // namespace accelerate::cli
