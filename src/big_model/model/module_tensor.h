#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace torch::nn {
class Module;
}

namespace accelerate::detail {

/// A tensor of a module by its dotted name.
struct ModuleTensorHandle {
  at::Tensor tensor;
  bool is_parameter = false;
};

/// Throws ConfigError, naming the module where the name ends, if there is none.
ModuleTensorHandle require_module_tensor(
    const torch::nn::Module& module,
    const std::string& name);

/// Gives a tensor the memory, dtype, shape and device of another, seen by every
/// handle to it. Its gradient, hooks and requires_grad stay; integers have no
/// requires_grad, and tensors without memory no hooks. For tensors without a
/// keeper.
void replace_in_place(const at::Tensor& tensor, const at::Tensor& contents);

/// Names for a message, joined by commas; only the first 20 of more.
std::string name_list(const std::vector<std::string>& names);

}  // namespace accelerate::detail
