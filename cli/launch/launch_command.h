#pragma once

#include <functional>
#include <memory>

namespace CLI {
class App;
}

namespace accelerate::cli {

/// Adds `launch` to the tool. The returned function runs it after parsing and
/// returns the exit code.
std::function<int()> add_launch_command(CLI::App& tool);

}  // namespace accelerate::cli
