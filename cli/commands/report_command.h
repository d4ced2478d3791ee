#pragma once

#include <functional>

namespace CLI {
class App;
}

namespace accelerate::cli {

/// `env`: a report to paste into an issue.
std::function<int()> add_env_command(CLI::App& tool);

/// `test`: a self-check on the configured layout.
std::function<int()> add_test_command(CLI::App& tool);

}  // namespace accelerate::cli
