#pragma once

namespace torch::nn {
class Module;
}  // namespace torch::nn

namespace accelerate::detail {

/// Whether the module is one of LibTorch's activations or dropout without
/// parameters: each element of its result depends on one of its input.
bool is_elementwise(const torch::nn::Module& module);

}  // namespace accelerate::detail
