#include "oracle/profile_cases.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string_view>

#include <ATen/Functions.h>

#include <accelerate/accelerate.h>

#include "support/run_on_ranks.h"
#include "support/temporary_directory.h"

namespace accelerate::oracle {

namespace profile_cases {

namespace fs = std::filesystem;

std::optional<ProfileSchedule> schedule_of(const Json& input) {
  const Json& given = input.at("schedule_option");
  if (given.is_null()) return std::nullopt;
  return ProfileSchedule{
      .wait = given.at("wait"),
      .warmup = given.at("warmup"),
      .active = given.at("active"),
      .repeat = given.at("repeat"),
      .skip_first = given.at("skip_first"),
      .skip_first_wait = given.value("skip_first_wait", 0) != 0};
}

Json files_in(const fs::path& directory) {
  std::vector<std::string> names;
  if (fs::is_directory(directory)) {
    for (const auto& entry : fs::directory_iterator(directory))
      names.push_back(entry.path().filename());
  }
  std::sort(names.begin(), names.end());
  return names;
}

// The step numbers in a trace; null if there is no trace.
Json steps_in(const fs::path& trace) {
  constexpr std::string_view kPrefix = "ProfilerStep#";
  std::ifstream stream(trace);
  if (!stream) return nullptr;
  std::vector<std::int64_t> steps;
  const Json json = Json::parse(stream);
  for (const Json& event : json.at("traceEvents")) {
    const std::string name = event.at("name");
    if (name.starts_with(kPrefix))
      steps.push_back(std::stoll(name.substr(kPrefix.size())));
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

// Runs a case's loop; returns the failure of its end, or null.
Json profile_steps(
    const Accelerator& accelerator,
    const ProfileOptions* options,
    std::int64_t steps) {
  Profile profile = options == nullptr ? accelerator.profile()
                                       : accelerator.profile(*options);
  for (std::int64_t step = 0; step < steps; ++step) {
    (void)at::ones({4}).add(1);
    profile.step();
  }
  try {
    profile.stop();
  } catch (const ConfigError& error) {
    return {{"error", error.what()}};
  }
  return nullptr;
}

}  // namespace profile_cases

Json run_profile_case(const Json& input) {
  using namespace profile_cases;
  const int count = input.at("num_processes");
  const bool writes = input.at("output_trace_dir");
  const testing::TemporaryDirectory directory;
  const fs::path traces = directory.path() / "traces";
  std::vector<Json> ranks(static_cast<std::size_t>(count));
  testing::run_on_ranks(count, [&](const WorldOptions& world) {
    Json calls = Json::array();
    ProfileOptions options{.schedule_option = schedule_of(input)};
    if (writes) options.output_trace_dir = traces.string();
    if (input.at("handler")) {
      options.on_trace_ready = [&](const ProfileResults& results) {
        calls.push_back(
            {{"step_num", results.step_num()},
             // The oracle did not record step numbers.
             {"steps", Json::array()},
             {"has_events", results.num_events() > 0}});
      };
    }
    const bool is_default = input.at("given_to") == "accelerator";
    AcceleratorOptions accelerator_options;
    accelerator_options.world = world;
    if (is_default) accelerator_options.profile = options;
    const Accelerator accelerator(accelerator_options);
    const Json failure = profile_steps(
        accelerator, is_default ? nullptr : &options, input.at("steps"));
    const int rank = accelerator.process_index();
    accelerator.wait_for_everyone();
    ranks[static_cast<std::size_t>(rank)] = {
        {"calls", calls},
        {"failure", failure},
        {"files", writes ? files_in(traces) : Json(nullptr)},
        {"steps_in_file",
         writes
             ? steps_in(traces / ("profile_" + std::to_string(rank) + ".json"))
             : Json(nullptr)}};
  });
  return {{"ranks", ranks}};
}

}  // namespace accelerate::oracle
