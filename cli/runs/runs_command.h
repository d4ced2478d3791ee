#pragma once

#include <functional>

namespace CLI {
class App;
}

namespace accelerate::cli {

/// Adds `runs` with list, show, compare and export. The returned function runs
/// the chosen one after parsing and returns the exit code.
std::function<int()> add_runs_command(CLI::App& tool);

}  // namespace accelerate::cli
