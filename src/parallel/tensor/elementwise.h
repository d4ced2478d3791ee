#pragma once

namespace torch::nn {
class Module;
}  // namespace torch::nn

namespace accelerate::detail {

/// Whether the module is one of LibTorch's activations or dropout without
/// parameters: each output element depends on one input element.
bool is_elementwise(const torch::nn::Module& module);

}  // namespace accelerate::detail
