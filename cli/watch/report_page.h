#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cli/runs/run_record.h"

namespace accelerate::cli {

/// The page about runs with all its data, for a browser without a server or
/// network. Curves have at most about 2000 points each, which look like all of
/// them.
std::string report_page(const std::vector<std::unique_ptr<RunRecord>>& runs);

}  // namespace accelerate::cli
