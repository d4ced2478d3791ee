#pragma once

#include <functional>

namespace CLI {
class App;
}

namespace accelerate::cli {

/// `estimate-memory`: what loading and training a model takes.
std::function<int()> add_estimate_command(CLI::App& tool);

}  // namespace accelerate::cli
