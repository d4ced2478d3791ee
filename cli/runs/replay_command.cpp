#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "cli/runs/print_warning.h"
#include "cli/runs/run_place.h"
#include "cli/tool/commands.h"
#include "config/environment.h"
#include "format/journal/journal_reader.h"
#include "trackers/feed/tracker_feed.h"
#include "trackers/journal/journal_tracker.h"
#include "trackers/journal/replay.h"
#include "trackers/registry.h"

namespace accelerate::cli {

namespace {

using detail::format;

struct ReplayFlags {
  std::string run;
  std::vector<std::string> to;
  std::string project;
  std::string logging_dir;
};

RunPlace only_run(const std::string& path) {
  std::vector<RunPlace> runs = find_runs({path});
  if (runs.size() == 1) return std::move(runs.front());
  throw ConfigError(format(
      "{} has {} runs; pass the directory of one of them",
      detail::printable(path),
      runs.size()));
}

detail::TrackerFeed::Trackers make_trackers(
    const ReplayFlags& flags,
    const std::filesystem::path& logging_dir,
    const detail::RecordedRun& run) {
  const std::vector<LogWith> wanted(flags.to.begin(), flags.to.end());
  const detail::TrackerRequest request{
      .project_name = flags.project,
      .logging_dir = logging_dir,
      .init_kwargs = {},
      .environment = detail::Environment::current(),
      .begin = run.begin,
      .warn = print_warning};
  detail::TrackerFeed::Trackers trackers;
  for (const auto& each : detail::filter_trackers(
           wanted, logging_dir, [](const auto&) { return true; }))
    trackers.push_back(detail::find_tracker_class(each.name)->make(request));
  return trackers;
}

int replay(ReplayFlags flags) {
  const RunPlace place = only_run(flags.run);
  detail::JournalReader reader(detail::journal_path(place.directory));
  const detail::RecordedRun run = detail::recorded_run(reader.read());
  if (reader.num_damaged_bytes() > 0) {
    print_warning(format(
        "{} bytes of the journal are damaged, and left out",
        reader.num_damaged_bytes()));
  }
  if (flags.project.empty())
    flags.project = run.project.empty() ? place.name : run.project;
  const std::filesystem::path logging_dir = flags.logging_dir.empty()
      ? place.directory
      : std::filesystem::path(flags.logging_dir);
  bool has_failed = false;
  {
    detail::TrackerFeed feed(
        make_trackers(flags, logging_dir, run),
        {.when_full = detail::WhenFull::wait,
         .where_else = "the others get the rest",
         .warn = [&](const std::string& text) {
           has_failed = true;
           print_warning(text);
         }});
    feed.start(run.config);
    for (const TrackedItem& item : run.items)
      feed.push(std::make_shared<TrackedItem>(item));
  }
  std::printf(
      "replayed %zu entries of %s to %s\n",
      run.items.size(),
      detail::printable(place.name).c_str(),
      detail::join(flags.to, ", ").c_str());
  return has_failed ? 1 : 0;
}

}  // namespace

RunCommand add_replay_command(CLI::App& tool) {
  const auto flags = std::make_shared<ReplayFlags>();
  CLI::App* const command = tool.add_subcommand(
      "replay", "give a run's journal to trackers, as if they had been there");
  command->add_option("run", flags->run, "directory of the run")->required();
  command
      ->add_option(
          "--to",
          flags->to,
          "tensorboard, wandb, trackio, comet_ml, aim, mlflow, clearml, "
          "dvclive, swanlab; several with commas")
      ->delimiter(',')
      ->required();
  command->add_option(
      "--project",
      flags->project,
      "name of the project there; otherwise the one that the run was given");
  command->add_option(
      "--logging_dir",
      flags->logging_dir,
      "directory for trackers that write files; otherwise the run's");
  return [flags] { return replay(*flags); };
}

}  // namespace accelerate::cli
