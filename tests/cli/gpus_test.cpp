// What a launch makes of the GPUs of its machine.
#include <algorithm>
#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <accelerate/error.h>

#include "cli/launch/decision/launch_decision.h"
#include "cli/launch/decision/launch_plan.h"
#include "cli/launch/machine/machine.h"
#include "cli/launch/machine/processor_sets.h"
#include "config/files/config_file.h"
#include "support/expect_error.h"
#include "support/temporary_directory.h"

namespace accelerate::cli {
namespace gpus_test {

using ::testing::Contains;
using ::testing::ElementsAre;
using testing::expect_error;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

using Flags = std::map<std::string, std::string>;

/// A machine with GPUs, the last half of which are near other processors than
/// the first.
class MachineWithGpus : public ::testing::Test {
 protected:
  void plant(int num_gpus) {
    for (int i = 0; i < num_gpus; ++i) {
      const std::string address = "0000:0" + std::to_string(i) + ":00.0";
      const auto driver = root_.path() / "proc/driver/nvidia/gpus" / address;
      const auto device = root_.path() / "sys/bus/pci/devices" / address;
      std::filesystem::create_directories(driver);
      std::filesystem::create_directories(device);
      std::ofstream(driver / "information") << "Model: \t H100\n";
      std::ofstream(device / "local_cpulist")
          << (i < num_gpus / 2 ? "0-3\n" : "4-7\n");
    }
  }

  [[nodiscard]] Machine machine(
      const std::optional<std::string>& visible = std::nullopt) const {
    detail::Environment environment;
    if (visible) environment.set("CUDA_VISIBLE_DEVICES", *visible);
    Machine seen = look_at_machine(environment, root_.path());
    seen.processors = {0, 1, 2, 3, 4, 5, 6, 7};
    return seen;
  }

  LaunchPlan plan(
      const Flags& flags,
      const Machine& seen,
      const std::string& config = {},
      detail::Environment environment = {},
      const std::string& program = "/bin/true") const {
    detail::Source source{detail::Origin::flag, {}};
    for (const auto& [key, value] : flags) source.add(key, value, "a flag");
    std::vector<detail::Source> sources{source};
    std::optional<detail::ConfigDocument> file;
    if (!config.empty()) {
      file = detail::parse_config(config, "run.yaml");
      sources.push_back(detail::source_from_config(*file));
    }
    const detail::Settings settings = detail::resolve(sources);
    const LaunchDecision decision = decide_launch(
        settings,
        file ? &*file : nullptr,
        std::max(seen.num_devices(), 1),
        ProgramKind::native);
    return make_launch_plan(decision, settings, environment, seen, {program});
  }

  testing::TemporaryDirectory root_;
};

TEST_F(MachineWithGpus, HasThoseThatItsVariableLeaves) {
  EXPECT_EQ(machine().num_devices(), 0);
  plant(4);
  EXPECT_EQ(machine().num_devices(), 4);
  EXPECT_EQ(machine("").num_devices(), 0);
  const Machine two = machine("2,0");
  ASSERT_EQ(two.num_devices(), 2);
  EXPECT_EQ(two.gpus[0].address, "0000:02:00.0");
  EXPECT_EQ(plan({}, two).num_processes, 2);
}

TEST_F(MachineWithGpus, BindsRanksToProcessorsNearTheirGpus) {
  plant(4);
  const Flags flags{{"cpu_affinity", "auto"}};
  const auto of = [](const LaunchPlan& plan) {
    std::vector<std::string> sets;
    for (const auto& set : plan.processors)
      sets.push_back(format_processors(set));
    return sets;
  };
  const LaunchPlan all = plan(flags, machine());
  ASSERT_EQ(all.processors.size(), 4U);
  for (std::size_t rank = 0; rank < 4; ++rank) {
    const auto& set = all.processors[rank];
    EXPECT_TRUE(std::all_of(set.begin(), set.end(), [&](int processor) {
      return (processor < 4) == (rank < 2);
    })) << format_processors(set);
  }
  // Alone near its GPU, a rank has all of the processors there.
  EXPECT_THAT(of(plan(flags, machine("3,0"))), ElementsAre("4-7", "0-3"));
  EXPECT_THAT(of(plan(flags, machine("1"))), ElementsAre("0-3"));
}

TEST_F(MachineWithGpus, SharesProcessorsWithoutGpusAsBefore) {
  plant(2);
  const Flags flags{
      {"cpu_affinity", "auto"}, {"use_cpu", "true"}, {"num_processes", "2"}};
  const auto expected =
      share_processors(with_topology({0, 1, 2, 3, 4, 5, 6, 7}), 2);
  EXPECT_EQ(plan(flags, machine()).processors, expected);
}

TEST_F(MachineWithGpus, RefusesMoreRanksThanGpusThatALaunchNames) {
  plant(2);
  const std::string refusal =
      "[launch] each rank must have a GPU of its own, but 4 ranks would start "
      "here, which has 2; start fewer, add --cpu, or, for tests, "
      "--share_devices";
  expect_error<ConfigError>(
      [&] { plan({{"multi_gpu", "true"}, {"num_processes", "4"}}, machine()); },
      refusal);
  expect_error<ConfigError>(
      [&] {
        plan({}, machine(), "distributed_type: MULTI_GPU\nnum_processes: 4\n");
      },
      refusal);
  expect_error<ConfigError>(
      [&] {
        plan({{"gpu_ids", "0,1"}, {"num_processes", "4"}}, machine("0,1"));
      },
      refusal);
  // The ranks themselves know whether they compute on GPUs.
  EXPECT_EQ(plan({{"num_processes", "4"}}, machine()).num_processes, 4);
  const std::string on_cpus = "distributed_type: MULTI_CPU\nnum_processes: 4\n";
  EXPECT_EQ(plan({}, machine(), on_cpus).num_processes, 4);
}

TEST_F(MachineWithGpus, LetsRanksShareGpusUnderNamesOfTheirOwn) {
  plant(1);
  const Flags flags{{"share_devices", "true"}, {"num_processes", "2"}};
  const LaunchPlan shared = plan(flags, machine());
  EXPECT_THAT(
      rank_variables(shared, 0, 0, {}),
      Contains("NCCL_HOSTID=machine0-process0"));
  EXPECT_THAT(
      rank_variables(shared, 1, 0, {}),
      Contains("NCCL_HOSTID=machine0-process1"));
  // A container may hide the driver's files.
  EXPECT_THAT(
      rank_variables(plan(flags, Machine{}), 1, 0, {}),
      Contains("NCCL_HOSTID=machine0-process1"));
  detail::Environment environment;
  environment.set("NCCL_HOSTID", "mine");
  expect_error<ConfigError>(
      [&] { plan(flags, machine(), {}, environment); },
      "[launch] NCCL_HOSTID must be unset with --share_devices, which gives "
      "each rank its own, but is \"mine\"");
  // Ranks with a GPU each are found by NCCL on one machine.
  plant(2);
  EXPECT_THAT(
      rank_variables(plan(flags, machine()), 0, 0, {}),
      Not(Contains(HasSubstr("NCCL_HOSTID"))));
}

TEST_F(MachineWithGpus, HidesDevicesOfOtherVendorsByTheirVariables) {
  for (const auto& [type, variable] :
       {std::pair("MULTI_GPU", "CUDA_VISIBLE_DEVICES"),
        std::pair("MULTI_XPU", "ZE_AFFINITY_MASK"),
        std::pair("MULTI_NPU", "ASCEND_RT_VISIBLE_DEVICES"),
        std::pair("MULTI_HPU", "HABANA_VISIBLE_MODULES"),
        std::pair("MULTI_MLU", "MLU_VISIBLE_DEVICES"),
        std::pair("MULTI_MUSA", "MUSA_VISIBLE_DEVICES"),
        std::pair("MULTI_SDAA", "SDAA_VISIBLE_DEVICES"),
        std::pair("MULTI_NEURON", "NEURON_RT_VISIBLE_CORES")}) {
    const LaunchPlan made = plan(
        {},
        Machine{},
        std::string("distributed_type: ") + type +
            "\nnum_processes: 2\ngpu_ids: 0,2\n");
    EXPECT_THAT(made.added, Contains(std::string(variable) + "=0,2"));
  }
}

TEST(NcclVariables, AreShownByADryRunAndLeftAlone) {
  detail::Environment environment;
  environment.set("NCCL_DEBUG", "INFO");
  const detail::Settings settings = detail::resolve({});
  const LaunchPlan plan = make_launch_plan(
      decide_launch(settings, nullptr, 1, ProgramKind::native),
      settings,
      environment,
      Machine{},
      {"/bin/true"});
  EXPECT_EQ(plan.environment.get("NCCL_DEBUG"), "INFO");
  EXPECT_THAT(
      describe(plan, settings),
      HasSubstr("NCCL_DEBUG = INFO  (environment variable; NCCL reads it "
                "itself)\n"));
}

}  // namespace gpus_test
}  // namespace accelerate::cli
