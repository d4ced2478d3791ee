#pragma once

#include <functional>

namespace CLI {
class App;
}

namespace accelerate::cli {

/// `config`, with `default`, `update`, `show` and `schema`. Call the result if
/// it was chosen; it returns the exit code.
std::function<int()> add_config_command(CLI::App& tool);

std::function<int()> add_to_fsdp2_command(CLI::App& tool);

/// Prints the command line it stands for, and runs nothing.
std::function<int()> add_tpu_config_command(CLI::App& tool);

}  // namespace accelerate::cli
