#pragma once

#include <functional>

namespace CLI {
class App;
}

namespace accelerate::cli {

/// `estimate-memory`: estimates the memory for loading and training a model.
std::function<int()> add_estimate_command(CLI::App& tool);

}  // namespace accelerate::cli
