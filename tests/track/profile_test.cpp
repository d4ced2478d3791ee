#include <fstream>
#include <map>
#include <mutex>
#include <set>

#include <gmock/gmock.h>
#include <torch/torch.h>
#include <nlohmann/json.hpp>

#include <accelerate/accelerate.h>

#include "support/expect_error.h"
#include "support/run_on_ranks.h"
#include "support/temporary_directory.h"
#include "track/profiler/profile_session.h"

namespace accelerate::profile_test {

using ::testing::ElementsAre;
using testing::expect_error;
using ::testing::IsEmpty;
using ::testing::Not;
using testing::run_on_ranks;
using testing::TemporaryDirectory;
using ::testing::UnorderedElementsAre;

struct NetImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) {
    return last->forward(torch::relu(first->forward(x)));
  }
  torch::nn::Linear first = register_module("first", torch::nn::Linear(4, 8));
  torch::nn::Linear last = register_module("last", torch::nn::Linear(8, 1));
};
TORCH_MODULE(Net);

auto samples(std::int64_t count) {
  return TensorDataset(torch::ones({count, 4}));
}

// Runs a training loop as a program writes it; `each` is called at the end of
// each step.
template <class Each>
void train(const Accelerator& accelerator, int num_steps, Each&& each) {
  Net net;
  torch::optim::SGD sgd(net->parameters(), 0.01);
  auto [model, optimizer, loader] = accelerator.prepare(
      net,
      sgd,
      DataLoader(
          samples(2 * num_steps * accelerator.num_processes()),
          {.batch_size = 2}));
  each.begin();
  for (auto& [x] : loader) {
    optimizer.zero_grad();
    accelerator.backward(model(x).square().mean());
    optimizer.step();
    each.step();
  }
  each.end();
}

// Profiles from the first step to the last.
struct Profiled {
  const Accelerator& accelerator;
  ProfileOptions options;
  std::optional<Profile> profile = std::nullopt;

  void begin() { profile.emplace(accelerator.profile(options)); }
  void step() { profile->step(); }
  void end() { profile->stop(); }
};

std::set<std::string> names_in(const std::vector<OperatorAverage>& rows) {
  std::set<std::string> names;
  for (const OperatorAverage& row : rows) names.insert(row.name);
  return names;
}

const OperatorAverage& row_of(
    const std::vector<OperatorAverage>& rows,
    const std::string& name,
    const std::string& module = {}) {
  for (const OperatorAverage& row : rows) {
    if (row.name == name && (module.empty() || row.module == module))
      return row;
  }
  std::string others;
  for (const std::string& other : names_in(rows)) others += "\n  " + other;
  throw std::runtime_error(
      "no row " + name + " of " + module + " among" + others);
}

nlohmann::json read_json(const std::filesystem::path& path) {
  std::ifstream stream(path);
  return nlohmann::json::parse(stream);
}

std::vector<OperatorAverage> averages_of(
    const ProfileOptions& options,
    const KeyAveragesOptions& grouping = {}) {
  const Accelerator accelerator({.world = {.rank = 0, .size = 1}});
  Profiled profiled{accelerator, options};
  train(accelerator, 3, profiled);
  return profiled.profile->key_averages(grouping);
}

TEST(Profile, CountsTheOperatorsOfEachStep) {
  const auto rows = averages_of({});
  // The operator that torch::nn::Linear calls if it has a bias.
  const OperatorAverage& addmm = row_of(rows, "aten::addmm");
  EXPECT_EQ(addmm.count, 6);
  EXPECT_EQ(row_of(rows, "aten::relu").count, 3);
  EXPECT_GT(addmm.cpu_time_total_us, addmm.self_cpu_time_total_us);
  EXPECT_GT(addmm.self_cpu_time_total_us, 0);
  EXPECT_EQ(addmm.flops, 0);
  EXPECT_EQ(addmm.cpu_memory_usage, 0);
}

TEST(Profile, GroupsOperatorsByShapes) {
  const auto rows =
      averages_of({.record_shapes = true}, {.group_by_input_shape = true});
  std::set<std::string> shapes;
  for (const OperatorAverage& row : rows) {
    if (row.name == "aten::addmm") shapes.insert(row.input_shapes);
  }
  EXPECT_THAT(
      shapes,
      UnorderedElementsAre(
          "[[8], [2, 4], [4, 8], [], []]", "[[1], [2, 8], [8, 1], [], []]"));
}

TEST(Profile, GroupsOperatorsByModules) {
  const auto rows =
      averages_of({.with_modules = true}, {.group_by_module = true});
  const std::string net = NetImpl().name();
  EXPECT_EQ(row_of(rows, "aten::addmm", net + ".first").count, 3);
  EXPECT_EQ(row_of(rows, "aten::addmm", net + ".last").count, 3);
  EXPECT_EQ(row_of(rows, "aten::relu", net).count, 3);
}

TEST(Profile, GroupsOperatorsByFunctions) {
  const auto rows = averages_of({.with_stack = true}, {.group_by_stack_n = 2});
  EXPECT_THAT(row_of(rows, "aten::relu").stack, Not(IsEmpty()));
  EXPECT_THAT(
      row_of(averages_of({}, {.group_by_stack_n = 2}), "aten::relu").stack,
      IsEmpty());
}

TEST(Profile, AddsUpOperationsAndMemory) {
  const auto rows = averages_of({.profile_memory = true, .with_flops = true});
  // 2 samples, weights of 4 x 8 and 8 x 1, in 3 steps.
  EXPECT_EQ(row_of(rows, "aten::addmm").flops, 3 * (2 * 2 * 4 * 8 + 2 * 2 * 8));
  EXPECT_GT(row_of(rows, "aten::addmm").cpu_memory_usage, 0);
}

TEST(Profile, RecordsItsOptionsUnlessOthersAreGiven) {
  const Accelerator accelerator(
      {.profile = ProfileOptions{.with_flops = true},
       .world = {.rank = 0, .size = 1}});
  const auto flops = [](Profile profile) {
    (void)torch::ones({2, 3}).mm(torch::ones({3, 4}));
    profile.stop();
    return row_of(profile.key_averages(), "aten::mm").flops;
  };
  EXPECT_EQ(flops(accelerator.profile()), 48);
  EXPECT_EQ(flops(accelerator.profile(ProfileOptions{})), 0);
}

TEST(Profile, CallsBackAtTheEndOfEachCycle) {
  std::vector<std::int64_t> ends;
  std::vector<std::vector<std::int64_t>> steps;
  const Accelerator accelerator({.world = {.rank = 0, .size = 1}});
  Profiled profiled{
      accelerator,
      {.schedule_option =
           ProfileSchedule{.wait = 1, .warmup = 1, .active = 2, .repeat = 2},
       .on_trace_ready = [&](const ProfileResults& results) {
         ends.push_back(results.step_num());
         steps.push_back(results.steps());
         EXPECT_EQ(row_of(results.key_averages(), "aten::relu").count, 2);
       }}};
  train(accelerator, 10, profiled);
  EXPECT_THAT(ends, ElementsAre(4, 8));
  EXPECT_THAT(steps, ElementsAre(ElementsAre(2, 3), ElementsAre(6, 7)));
  EXPECT_EQ(profiled.profile->step_times().num_steps, 4);
}

TEST(Profile, RecordsTheTimeOfStepsAloneIfNoActivityIsAskedFor) {
  const Accelerator accelerator({.world = {.rank = 0, .size = 1}});
  Profiled profiled{
      accelerator, {.activities = std::vector<ProfilerActivity>()}};
  train(accelerator, 5, profiled);
  EXPECT_EQ(profiled.profile->results().num_events(), 0U);
  const StepTimes times = profiled.profile->step_times();
  EXPECT_EQ(times.num_steps, 5);
  EXPECT_GT(times.data_ns, 0);
  EXPECT_GT(times.forward_ns, 0);
  EXPECT_GT(times.backward_ns, 0);
  EXPECT_GT(times.optimizer_ns, 0);
  EXPECT_EQ(times.communication_ns, 0);
  EXPECT_EQ(times.hidden_communication_ns, 0);
  EXPECT_EQ(
      times.total_ns,
      times.data_ns + times.forward_ns + times.backward_ns +
          times.optimizer_ns + times.other_ns + times.idle_ns);
}

TEST(Profile, LeavesNothingBehind) {
  const Accelerator accelerator({.world = {.rank = 0, .size = 1}});
  Profiled first{accelerator, {}};
  train(accelerator, 2, first);
  Profiled second{accelerator, {}};
  train(accelerator, 2, second);
  EXPECT_EQ(row_of(second.profile->key_averages(), "aten::relu").count, 2);
  EXPECT_EQ(row_of(first.profile->key_averages(), "aten::relu").count, 2);
}

TEST(Profile, RefusesWhatItCannotDo) {
  const Accelerator accelerator({.world = {.rank = 0, .size = 1}});
  expect_error<ConfigError>(
      [&] {
        (void)accelerator.profile(
            {.activities = std::vector{ProfilerActivity::cuda}});
      },
      "valid activities: \"cpu\"");
  expect_error<ConfigError>(
      [&] {
        (void)accelerator.profile(
            {.schedule_option = ProfileSchedule{.active = 0}});
      },
      "active at least 1");
  auto profile = accelerator.profile(ProfileOptions{});
  expect_error<ConfigError>(
      [&] { (void)accelerator.profile(ProfileOptions{}); },
      "another one is running");
  expect_error<ConfigError>(
      [&] { (void)profile.results(); }, "before it has recorded any");
  profile.stop();
  profile.stop();
  expect_error<ConfigError>([&] { profile.step(); }, "has ended");
}

TEST(Profile, EndsWithItsScope) {
  const TemporaryDirectory directory;
  const Accelerator accelerator({.world = {.rank = 0, .size = 1}});
  {
    const auto profile = accelerator.profile(
        {.output_trace_dir = (directory.path() / "traces").string()});
    (void)torch::ones({2}).exp();
  }
  EXPECT_TRUE(
      std::filesystem::exists(directory.path() / "traces" / "profile_0.json"));
  // This thread is no longer being recorded.
  accelerator.profile(ProfileOptions{}).stop();
}

// Expects the events of a row to follow each other or to be nested.
void expect_nested(const nlohmann::json& trace) {
  std::map<std::string, std::vector<std::pair<double, double>>> rows;
  for (const auto& event : trace.at("traceEvents")) {
    ASSERT_TRUE(event.contains("ph") && event.contains("pid"));
    if (event.at("ph") != "X") continue;
    const double begin = event.at("ts");
    rows[event.at("tid").dump()].push_back(
        {begin, -event.at("dur").get<double>()});
  }
  EXPECT_FALSE(rows.empty());
  // Microseconds are rounded to three digits.
  constexpr double kRounding = 1e-4;
  for (auto& [row, events] : rows) {
    std::sort(events.begin(), events.end());
    std::vector<double> open;
    for (const auto& [begin, minus] : events) {
      while (!open.empty() && open.back() <= begin + kRounding) open.pop_back();
      const double end = begin - minus;
      if (!open.empty()) {
        EXPECT_LE(end, open.back() + kRounding);
      }
      open.push_back(end);
    }
  }
}

TEST(Profile, WritesATraceOfEachRank) {
  const TemporaryDirectory directory;
  const auto traces = directory.path() / "traces";
  run_on_ranks(2, [&](const WorldOptions& world) {
    const Accelerator accelerator({.world = world});
    Profiled profiled{
        accelerator,
        {.schedule_option = ProfileSchedule{.wait = 1, .active = 2},
         .output_trace_dir = traces.string()}};
    train(accelerator, 3, profiled);
    // Every rank has written its file by now.
    EXPECT_TRUE(std::filesystem::exists(traces / "profile_0.json"));
    EXPECT_TRUE(std::filesystem::exists(traces / "profile_1.json"));
  });
  for (int rank = 0; rank < 2; ++rank) {
    const auto trace =
        read_json(traces / ("profile_" + std::to_string(rank) + ".json"));
    EXPECT_EQ(trace.at("distributedInfo").at("rank"), rank);
    expect_nested(trace);
    std::map<std::string, int> counts;
    for (const auto& event : trace.at("traceEvents"))
      ++counts[event.at("name").get<std::string>()];
    EXPECT_EQ(counts["ProfilerStep#1"], 1);
    EXPECT_EQ(counts["ProfilerStep#2"], 1);
    EXPECT_EQ(counts["ProfilerStep#0"], 0);
    EXPECT_EQ(counts["aten::relu"], 2);
    EXPECT_EQ(counts["backward"], 2);
    EXPECT_EQ(counts["forward " + NetImpl().name()], 2);
    // Only the other ranks' clocks are compared with rank 0's.
    EXPECT_EQ(trace.at("clockOffsetErrorNanoseconds") == 0, rank == 0);
  }
}

TEST(Profile, GathersTheTimesOfAllRanks) {
  run_on_ranks(2, [](const WorldOptions& world) {
    const Accelerator accelerator({.world = world});
    Profiled profiled{
        accelerator, {.activities = std::vector<ProfilerActivity>()}};
    train(accelerator, 4, profiled);
    const std::vector<StepTimes> all = profiled.profile->gather_step_times();
    ASSERT_EQ(all.size(), 2U);
    const auto mine = static_cast<std::size_t>(accelerator.process_index());
    EXPECT_EQ(all[mine], profiled.profile->step_times());
    for (std::size_t rank = 0; rank < 2; ++rank) {
      const StepTimes& row = all[rank];
      EXPECT_EQ(row.rank, static_cast<std::int64_t>(rank));
      EXPECT_EQ(row.num_steps, 4);
      // Gradients are averaged in every step.
      EXPECT_GT(row.communication_ns + row.hidden_communication_ns, 0);
      EXPECT_EQ(
          row.total_ns,
          row.data_ns + row.forward_ns + row.backward_ns + row.optimizer_ns +
              row.communication_ns + row.other_ns + row.idle_ns);
    }
  });
}

TEST(Profile, CountsTheWaitsOfShardedModels) {
  run_on_ranks(2, [](const WorldOptions& world) {
    const Accelerator accelerator(
        {.parallel = {.fully_sharded = FullyShardedDataParallelOptions{}},
         .world = world});
    Profiled profiled{
        accelerator, {.activities = std::vector<ProfilerActivity>()}};
    train(accelerator, 2, profiled);
    EXPECT_GT(profiled.profile->step_times().communication_ns, 0);
  });
}

TEST(Profile, FailsOnAllRanksIfItHasNothingToWrite) {
  const TemporaryDirectory directory;
  run_on_ranks(2, [&](const WorldOptions& world) {
    const Accelerator accelerator({.world = world});
    auto profile = accelerator.profile(
        {.schedule_option = ProfileSchedule{.wait = 5},
         .output_trace_dir = (directory.path() / "traces").string()});
    profile.step();
    expect_error<ConfigError>(
        [&] { profile.stop(); }, "ended after 1 steps, before its schedule");
  });
}

TEST(ClockOffset, IsFoundWithinItsError) {
  constexpr std::int64_t kAhead = 123'456'789;
  run_on_ranks(3, [&](const WorldOptions& options) {
    const World world(options);
    const auto offset = detail::measure_clock_offset(
        world.store().with_prefix("clock"), world.rank(), world.size(), [&] {
          return detail::profile_now() + kAhead * world.rank();
        });
    EXPECT_LE(
        std::abs(offset.offset_ns - kAhead * world.rank()), offset.error_ns);
    EXPECT_EQ(offset.error_ns == 0, world.rank() == 0);
  });
}

}  // namespace accelerate::profile_test
