#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "cli/runs/run_record.h"
#include "cli/watch/curve.h"
#include "cli/watch/watched_runs.h"

namespace accelerate::cli {

// The JSON that the page receives. Times are in seconds since 1970, except
// those of points, which are in seconds since the run began. Values that JSON
// lacks are null.

/// A summary of a run: name, times, settings, sessions, the step, time and name
/// of each checkpoint, the number of warnings, and the extremes of each figure.
std::string run_json(const RunRecord& run, std::size_t index);
/// {"count": points of the figure, "steps": [...], "times": [...], "values":
/// [...]} of the figure's points that are kept.
std::string curve_json(
    const RunRecord& run,
    const std::string& name,
    const CurveRequest& request);
/// Like curve_json(), but has all points from `begin` on, with "at": begin.
std::string new_points_json(
    const RunRecord& run,
    const std::string& name,
    std::size_t begin);
/// {name: {"times": [...], "values": [...]}} of the system's figures.
std::string system_json(const RunRecord& run, std::size_t num_columns);
/// [{"time": ..., "ranks": [[rank, step, steps_per_second, memory_mb], ...]}],
/// at most `most` of them, evenly spaced, including the last.
std::string ranks_json(const RunRecord& run, std::size_t most);
/// All events except settings. The bodies of images and figures are left out,
/// or with `inline_media` are data: URLs.
std::string events_json(const RunRecord& run, bool inline_media);
/// The JSON that the page receives when runs have grown.
std::string changes_json(
    const WatchedRuns& runs,
    const std::vector<RunChange>& changes);

/// The JSON of an object whose members are already JSON.
std::string json_object(
    const std::vector<std::pair<std::string, std::string>>& members);
std::string json_list(const std::vector<std::string>& items);

}  // namespace accelerate::cli
