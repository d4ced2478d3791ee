#pragma once

#include <functional>

namespace CLI {
class App;
}

namespace accelerate::cli {

/// Adds `checkpoint` with ls, verify, show, prune and convert. The returned
/// function runs the chosen one after parsing and returns the exit code.
std::function<int()> add_checkpoint_command(CLI::App& tool);

}  // namespace accelerate::cli
