#pragma once

#include <functional>

namespace CLI {
class App;
}

namespace accelerate::cli {

/// Adds `config` with `default`, `update`, `show` and `schema`. The returned
/// function runs the chosen one after parsing and returns the exit code.
std::function<int()> add_config_command(CLI::App& tool);

std::function<int()> add_to_fsdp2_command(CLI::App& tool);

/// Adds `tpu-config`, which only prints the command line to run.
std::function<int()> add_tpu_config_command(CLI::App& tool);

}  // namespace accelerate::cli
