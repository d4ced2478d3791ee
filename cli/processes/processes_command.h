#pragma once

#include <functional>

namespace CLI {
class App;
}

namespace accelerate::cli {

/// `ps`: what runs on this machine.
std::function<int()> add_ps_command(CLI::App& tool);

/// `stacks`: where the threads of a group's ranks are.
std::function<int()> add_stacks_command(CLI::App& tool);
/// `resize`: changes the number of ranks of an elastic group.
std::function<int()> add_resize_command(CLI::App& tool);

}  // namespace accelerate::cli
