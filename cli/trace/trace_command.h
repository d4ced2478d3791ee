#pragma once

#include <functional>

namespace CLI {
class App;
}

namespace accelerate::cli {

/// Adds `trace`. The returned function runs it after parsing and returns the
/// exit code.
std::function<int()> add_trace_command(CLI::App& tool);

}  // namespace accelerate::cli
