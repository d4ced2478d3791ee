#pragma once

#include <functional>

namespace CLI {
class App;
}

namespace accelerate::cli {

/// Adds `replay`. The returned function runs it after parsing and returns the
/// exit code.
std::function<int()> add_replay_command(CLI::App& tool);

}  // namespace accelerate::cli
