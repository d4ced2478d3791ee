#include "cli/watch/watched_runs.h"

#include <cstdint>
#include <exception>
#include <map>
#include <utility>

#include <accelerate/error.h>

#include "base/process/jobs.h"
#include "base/text/text.h"

namespace accelerate::cli {

namespace {

using Point = RunRecord::Point;

// Reading one long journal must not keep the others waiting.
constexpr std::uint64_t kMostBytesAtOnce = std::uint64_t{64} << 20U;

// How far a run has been read.
struct Mark {
  std::map<std::string, std::pair<std::size_t, Point>> figures;
  std::size_t num_events = 0;
  std::size_t num_system = 0;
  std::size_t num_ranks = 0;
};

std::size_t num_system_points(const RunRecord& run) {
  std::size_t num = 0;
  for (const auto& [name, points] : run.system()) num += points.size();
  return num;
}

Mark mark_of(const RunRecord& run) {
  Mark mark;
  for (const auto& [name, points] : run.series()) {
    if (!points.empty()) mark.figures[name] = {points.size(), points.back()};
  }
  mark.num_events = run.events().size();
  mark.num_system = num_system_points(run);
  mark.num_ranks = run.ranks().size();
  return mark;
}

// The last point is still in its place unless points before it were dropped,
// repeated or inserted.
RunChange change_since(const Mark& before, const RunRecord& run) {
  RunChange change;
  for (const auto& [name, points] : run.series()) {
    const auto found = before.figures.find(name);
    if (found == before.figures.end()) {
      if (!points.empty()) change.figures.push_back({name, 0, false});
      continue;
    }
    const auto& [size, last] = found->second;
    if (points.size() < size || points[size - 1] != last) {
      change.figures.push_back({name, 0, true});
    } else if (points.size() > size) {
      change.figures.push_back({name, size, false});
    }
  }
  change.has_events = run.events().size() != before.num_events;
  change.has_system = num_system_points(run) != before.num_system;
  change.has_ranks = run.ranks().size() != before.num_ranks;
  return change;
}

}  // namespace

WatchedRuns::WatchedRuns(std::vector<std::string> paths)
    : paths_(std::move(paths)) {
  open_new_runs(find_runs(paths_));
}

void WatchedRuns::open_new_runs(const std::vector<RunPlace>& places) {
  std::set<std::filesystem::path> known;
  for (const auto& run : runs_) known.insert(run->place().directory);
  for (const RunPlace& place : places) {
    if (known.contains(place.directory)) continue;
    try {
      runs_.push_back(std::make_unique<RunRecord>(place));
    } catch (const Error&) {
      // The run was just deleted, or belongs to another user.
      continue;
    }
  }
}

// Returns nothing if the run has not changed.
std::optional<RunChange> WatchedRuns::look(std::size_t index) {
  RunRecord& run = *runs_[index];
  if (given_up_.contains(index)) return std::nullopt;
  const std::string problem = run.problem();
  const Mark before = mark_of(run);
  bool has_changed = false;
  try {
    has_changed = run.update(kMostBytesAtOnce);
    run.set_problem({});
  } catch (const Error& error) {
    run.set_problem(error.what());
  }
  if (!has_changed && run.problem() == problem) return std::nullopt;
  RunChange change = change_since(before, run);
  change.has_events |= run.problem() != problem;
  return change;
}

bool WatchedRuns::has_more() const {
  for (std::size_t i = 0; i < runs_.size(); ++i) {
    if (runs_[i]->has_more() && !given_up_.contains(i)) return true;
  }
  return false;
}

std::vector<RunChange> WatchedRuns::update() {
  try {
    if (num_reported_ > 0) open_new_runs(find_runs_so_far(paths_));
  } catch (const ConfigError&) {
    // The directory is gone; what was read from it stays.
  }
  std::vector<std::optional<RunChange>> found(runs_.size());
  std::vector<std::string> failures(runs_.size());
  detail::run_jobs(
      runs_.size(),
      detail::num_helpful_threads(runs_.size()),
      [&](std::size_t, std::size_t i) {
        try {
          found[i] = look(i);
        } catch (const std::exception& error) {
          failures[i] = error.what();
        }
      });
  for (std::size_t i = 0; i < failures.size(); ++i) {
    if (failures[i].empty()) continue;
    given_up_.insert(i);
    runs_[i]->set_problem(
        detail::format("it is read no further ({})", failures[i]));
    found[i].emplace().has_events = true;
  }
  std::vector<RunChange> changes;
  for (std::size_t i = 0; i < found.size(); ++i) {
    const bool is_new = i >= num_reported_;
    if (!found[i] && !is_new) continue;
    changes.push_back(found[i] ? std::move(*found[i]) : RunChange());
    changes.back().run = i;
    changes.back().is_new = is_new;
  }
  num_reported_ = runs_.size();
  return changes;
}

std::vector<std::string> WatchedRuns::figure_names() const {
  std::set<std::string> names;
  for (const auto& run : runs_) {
    for (const auto& [name, points] : run->series()) {
      if (!points.empty()) names.insert(name);
    }
  }
  return {names.begin(), names.end()};
}

}  // namespace accelerate::cli
