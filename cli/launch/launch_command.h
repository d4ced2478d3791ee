#pragma once

#include <functional>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace accelerate::cli {

/// Adds `launch` to the tool. The returned function runs it after parsing and
/// returns the exit code.
std::function<int()> add_launch_command(CLI::App& tool);

/// Removes the "--" that may stand before the program of a `launch`, which
/// CLI11 does not expect there. `words` are the tool's arguments.
std::vector<std::string> without_separator(
    const CLI::App& tool,
    std::vector<std::string> words);

}  // namespace accelerate::cli
