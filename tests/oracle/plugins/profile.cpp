#include "oracle/plugins/plugins.h"

namespace accelerate::oracle::topic_plugins {

namespace {

template <class Schedule, class Visit>
void visit_schedule(Schedule& schedule, const Visit& visit) {
  visit("wait", schedule.wait);
  visit("warmup", schedule.warmup);
  visit("active", schedule.active);
  visit("repeat", schedule.repeat);
  visit("skip_first", schedule.skip_first);
}

ProfileOptions profile_options(const Json& args) {
  ProfileOptions options;
  if (args.contains("activities")) {
    options.activities.emplace();
    for (const std::string word : args.at("activities"))
      options.activities->push_back(parse_profiler_activity(word));
  }
  if (args.contains("schedule_option")) {
    visit_schedule(
        options.schedule_option.emplace(), [&](const char* name, auto& field) {
          read(args.at("schedule_option"), name, field);
        });
  }
  read(args, "record_shapes", options.record_shapes);
  read(args, "profile_memory", options.profile_memory);
  read(args, "with_stack", options.with_stack);
  read(args, "with_flops", options.with_flops);
  read(args, "with_modules", options.with_modules);
  read(args, "output_trace_dir", options.output_trace_dir);
  return options;
}

Json activities_json(const ProfileOptions& options) {
  if (!options.activities) return nullptr;
  Json names = Json::array();
  for (const ProfilerActivity activity : *options.activities)
    names.push_back(activity == ProfilerActivity::cpu ? "cpu" : "cuda");
  return names;
}

// Python keeps the dictionary as given, without defaults.
Json schedule_json(const ProfileOptions& options, const Json& args) {
  if (!options.schedule_option) return nullptr;
  Json schedule = Json::object();
  visit_schedule(
      *options.schedule_option, [&](const char* name, std::int64_t value) {
        if (args.at("schedule_option").contains(name)) schedule[name] = value;
      });
  return schedule;
}

}  // namespace

Json run_profile(const Json& input) {
  const Json& args = input.at("args");
  const ProfileOptions options = profile_options(args);
  Json outcome{
      {"fields",
       {{"activities", activities_json(options)},
        {"schedule_option", schedule_json(options, args)},
        {"record_shapes", options.record_shapes},
        {"profile_memory", options.profile_memory},
        {"with_stack", options.with_stack},
        {"with_flops", options.with_flops},
        {"with_modules", options.with_modules},
        {"output_trace_dir",
         options.output_trace_dir.empty() ? Json(nullptr)
                                          : Json(options.output_trace_dir)}}}};
  if (!options.schedule_option) return outcome;
  constexpr std::array kActions{"NONE", "WARMUP", "RECORD", "RECORD_AND_SAVE"};
  for (std::int64_t step = 0; step < input.at("steps"); ++step) {
    const auto action = profiler_action(*options.schedule_option, step);
    outcome["actions"].push_back(kActions.at(static_cast<std::size_t>(action)));
  }
  return outcome;
}

}  // namespace accelerate::oracle::topic_plugins
