#include <cstdio>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include <accelerate/error.h>

#include "base/files/files.h"
#include "base/text/text.h"
#include "cli/runs/figures.h"
#include "cli/runs/print_warning.h"
#include "cli/runs/run_export.h"
#include "cli/runs/run_record.h"
#include "cli/runs/text_table.h"
#include "cli/tool/commands.h"

namespace accelerate::cli {

namespace {

using detail::format;
namespace journal_kind = detail::journal_kind;
using Runs = std::vector<std::unique_ptr<RunRecord>>;

struct RunsFlags {
  std::vector<std::string> paths;
  std::string format = "csv";
  std::string output;
};

void put_text(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
}

void put_line(const std::string& text) {
  put_text(detail::printable(text, text.npos) + "\n");
}

std::string value_at(const RunRecord::Point* point) {
  return point == nullptr
      ? ""
      : format("{} @{}", short_number(point->value), point->step);
}

std::string step_text(std::optional<std::int64_t> step) {
  return step ? std::to_string(*step) : "";
}

int list_runs(const RunsFlags& flags) {
  TextTable table({"run", "began", "took", "step", "last value", "notes"});
  for (const auto& run : read_runs(flags.paths, print_warning)) {
    const std::string name = main_figure_of(*run);
    const Extremes extremes =
        name.empty() ? Extremes() : extremes_of(run->series().at(name));
    std::vector<std::string> notes;
    if (run->sessions().size() > 1)
      notes.push_back(
          run->sessions().size() == 2
              ? "resumed once"
              : format("resumed {} times", run->sessions().size() - 1));
    if (run->num_damaged_bytes() > 0)
      notes.push_back(format("{} bytes damaged", run->num_damaged_bytes()));
    table.add(
        {run->name(),
         time_text(run->begin()),
         duration_text(run->duration()),
         step_text(run->last_step()),
         extremes.last == nullptr
             ? ""
             : format("{} {}", name, short_number(extremes.last->value)),
         detail::join(notes, ", ")});
  }
  put_text(table.text());
  return 0;
}

void show_figures(const RunRecord& run) {
  TextTable table({"figure", "points", "min", "max", "last"});
  for (const auto& [name, points] : run.series()) {
    const Extremes extremes = extremes_of(points);
    table.add(
        {name,
         std::to_string(points.size()),
         value_at(extremes.min),
         value_at(extremes.max),
         value_at(extremes.last)});
  }
  if (!table.empty()) put_text("\n" + table.text());
}

void show_system(const RunRecord& run) {
  TextTable table({"system", "points", "min", "max", "last"});
  const auto value = [](const RunRecord::Point* point) {
    return point == nullptr ? "" : short_number(point->value);
  };
  for (const auto& [name, points] : run.system()) {
    const Extremes extremes = extremes_of(points);
    table.add(
        {name,
         std::to_string(points.size()),
         value(extremes.min),
         value(extremes.max),
         value(extremes.last)});
  }
  if (!table.empty()) put_text("\n" + table.text());
}

void show_events(const RunRecord& run) {
  std::map<std::string, std::size_t> counts;
  TextTable table({"event", "step", "time", "text"});
  for (const RunRecord::Event& event : run.events()) {
    const std::string& kind = event.event.kind;
    if (kind == journal_kind::kCheckpoint) {
      table.add(
          {kind,
           step_text(event.step),
           time_text(event.time),
           event.event.name});
    } else if (kind == journal_kind::kWarning) {
      table.add(
          {kind,
           step_text(event.step),
           time_text(event.time),
           event.event.body});
    } else {
      ++counts[kind];
    }
  }
  if (!table.empty()) put_text("\n" + table.text());
  std::vector<std::string> others;
  for (const auto& [kind, count] : counts) {
    if (kind == journal_kind::kConfig || kind == journal_kind::kHyperparameters)
      continue;
    others.push_back(format("{} {}", count, kind));
  }
  if (!others.empty()) put_line("also logged: " + detail::join(others, ", "));
}

int show_runs(const RunsFlags& flags) {
  bool is_first = true;
  for (const auto& run : read_runs(flags.paths, print_warning)) {
    if (!is_first) put_text("\n");
    is_first = false;
    put_line(format("{}  {}", run->name(), run->place().directory.string()));
    put_line(format(
        "began {}, last entry {}, {} {}",
        time_text(run->begin()),
        time_text(run->end()),
        run->sessions().size(),
        run->sessions().size() == 1 ? "process" : "processes in turn"));
    if (run->num_damaged_bytes() > 0)
      put_line(format("{} bytes of it are damaged", run->num_damaged_bytes()));
    TextTable settings({"setting", "value"});
    for (const auto& [name, value] : settings_of(*run))
      settings.add({name, value});
    if (!settings.empty()) put_text("\n" + settings.text());
    show_figures(*run);
    show_system(*run);
    show_events(*run);
  }
  return 0;
}

std::vector<std::string> heading(const char* first, const Runs& runs) {
  std::vector<std::string> names{first};
  for (const auto& run : runs) names.push_back(run->name());
  return names;
}

void compare_settings(const Runs& runs) {
  std::vector<std::map<std::string, std::string>> settings;
  std::vector<std::string> names;
  std::set<std::string> seen;
  for (const auto& run : runs) {
    auto& own = settings.emplace_back();
    for (auto& [name, value] : settings_of(*run)) {
      if (seen.insert(name).second) names.push_back(name);
      own.emplace(name, std::move(value));
    }
  }
  TextTable table(heading("setting", runs));
  std::size_t num_equal = 0;
  for (const std::string& name : names) {
    std::vector<std::string> row{name};
    std::set<std::string> values;
    for (const auto& own : settings) {
      const auto found = own.find(name);
      // An empty text also counts as a value.
      row.push_back(found == own.end() ? "-" : found->second);
      values.insert(found == own.end() ? "missing" : "=" + found->second);
    }
    if (values.size() > 1) {
      table.add(std::move(row));
    } else {
      ++num_equal;
    }
  }
  if (!table.empty()) put_text(table.text());
  put_line(
      table.empty() ? format("all {} settings are equal", num_equal)
                    : format("{} other settings are equal", num_equal));
}

void compare_figures(const Runs& runs) {
  std::set<std::string> names;
  for (const auto& run : runs)
    for (const auto& [name, points] : run->series()) names.insert(name);
  TextTable table(heading("figure", runs));
  const auto add =
      [&](const std::string& name, const char* which, auto choose) {
        std::vector<std::string> row{format("{} {}", which, name)};
        for (const auto& run : runs) {
          const auto found = run->series().find(name);
          row.push_back(
              found == run->series().end()
                  ? "-"
                  : value_at(choose(extremes_of(found->second))));
        }
        table.add(std::move(row));
      };
  for (const std::string& name : names) {
    const Better better = better_values(name);
    if (better == Better::unknown) {
      add(name, "min", [](const Extremes& each) { return each.min; });
      add(name, "max", [](const Extremes& each) { return each.max; });
    } else {
      add(name, "best", [=](const Extremes& each) {
        return each.best(better);
      });
    }
    add(name, "last", [](const Extremes& each) { return each.last; });
  }
  if (!table.empty()) put_text("\n" + table.text());
}

int compare(const RunsFlags& flags) {
  const Runs runs = read_runs(flags.paths, print_warning);
  if (runs.size() < 2)
    throw ConfigError("there is only one run; pass two or more to compare");
  compare_settings(runs);
  compare_figures(runs);
  return 0;
}

int export_runs(const RunsFlags& flags) {
  const Runs runs = read_runs(flags.paths, print_warning);
  const std::string text =
      flags.format == "json" ? to_export_json(runs) : to_csv(runs);
  if (flags.output.empty()) {
    put_text(text);
  } else {
    detail::replace_file(flags.output, text);
  }
  return 0;
}

}  // namespace

RunCommand add_runs_command(CLI::App& tool) {
  const auto flags = std::make_shared<RunsFlags>();
  CLI::App* const command = tool.add_subcommand(
      "runs", "list, show, compare and export what runs have logged");
  command->require_subcommand(1);
  const auto add = [&](const char* name, const char* help) {
    CLI::App* const sub = command->add_subcommand(name, help);
    sub->add_option(
        "path",
        flags->paths,
        "directories of runs or of projects; the current one without any");
    return sub;
  };
  const CLI::App* const list_command =
      add("list", "each run, how far it came, and its loss");
  const CLI::App* const show_command =
      add("show", "settings, figures, checkpoints and warnings of runs");
  const CLI::App* const compare_command =
      add("compare",
          "settings that differ, and the best and last value of each figure");
  CLI::App* const export_command =
      add("export", "figures as CSV, or everything as JSON");
  export_command
      ->add_option(
          "--format",
          flags->format,
          "csv: run,name,step,time,value; json: settings, "
          "sessions and events as well")
      ->check(CLI::IsMember({"csv", "json"}))
      ->capture_default_str();
  export_command->add_option(
      "-o,--output", flags->output, "write this file, not standard output");
  return [=] {
    if (list_command->parsed()) return list_runs(*flags);
    if (show_command->parsed()) return show_runs(*flags);
    if (compare_command->parsed()) return compare(*flags);
    return export_runs(*flags);
  };
}

}  // namespace accelerate::cli
