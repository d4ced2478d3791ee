#pragma once

#include <functional>

namespace CLI {
class App;
}

namespace accelerate::cli {

/// `watch`: runs as they happen, in the terminal or in a browser. The returned
/// function runs it after parsing and returns the exit code.
std::function<int()> add_watch_command(CLI::App& tool);

/// `report`: a page about runs as one file.
std::function<int()> add_run_report_command(CLI::App& tool);

}  // namespace accelerate::cli
