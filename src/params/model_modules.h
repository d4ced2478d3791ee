#pragma once

#include "modules/module_tree.h"

namespace torch::nn {
class Module;
}

namespace accelerate::detail {

/// The tree of a program's module. A tensor shared by several modules has the
/// same id in all of them; undefined tensors are left out.
ModuleNode module_tree(const torch::nn::Module& module);

}  // namespace accelerate::detail
