#pragma once

#include <functional>

namespace CLI {
class App;
}

namespace accelerate::cli {

/// Adds `merge-weights`. The returned function runs it after parsing and
/// returns the exit code.
std::function<int()> add_merge_weights_command(CLI::App& tool);

/// Adds `convert`, likewise.
std::function<int()> add_convert_command(CLI::App& tool);

}  // namespace accelerate::cli
