#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cli/runs/run_record.h"

namespace accelerate::cli {

/// Figures as CSV (RFC 4180, with LF): one line per value with run, name, step,
/// time and value, ordered by run, name and step. Times are in seconds since
/// 1970; values are exact, or nan, inf, -inf.
std::string to_csv(const std::vector<std::unique_ptr<RunRecord>>& runs);

/// Everything except the bodies of images and figures as JSON: a list of runs,
/// each with name, directory, settings, sessions, series, system, ranks and
/// events. Values that JSON cannot represent are null.
std::string to_export_json(const std::vector<std::unique_ptr<RunRecord>>& runs);

}  // namespace accelerate::cli
