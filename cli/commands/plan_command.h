#pragma once

#include <functional>

namespace CLI {
class App;
}

namespace accelerate::cli {

/// Adds `plan`: which layout a training run should use. Returns the function
/// that runs it, which returns the exit code: 1 if nothing fits.
std::function<int()> add_plan_command(CLI::App& tool);

}  // namespace accelerate::cli
