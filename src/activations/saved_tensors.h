#pragma once

#include <memory>

#include <torch/csrc/autograd/saved_variable_hooks.h>

namespace accelerate::detail {

/// Decides what autograd keeps instead of the tensors that this thread's
/// operators save for backward. make_hooks() is called once per saved tensor;
/// null leaves the tensor to the enclosing scope, or unchanged.
class SavedTensorKeeper {
 public:
  SavedTensorKeeper() = default;
  SavedTensorKeeper(const SavedTensorKeeper&) = delete;
  SavedTensorKeeper& operator=(const SavedTensorKeeper&) = delete;
  virtual ~SavedTensorKeeper() = default;

  virtual std::unique_ptr<torch::autograd::SavedVariableHooks> make_hooks() = 0;
};

/// While alive, consults `keeper` before those of enclosing scopes. Must be
/// destroyed on the thread that made it, the innermost first.
///
/// Implementation: LibTorch asks its autograd engine for such hooks, and the
/// C++ engine has none; the first scope of a process replaces it with an engine
/// that does.
class SavedTensorScope {
 public:
  explicit SavedTensorScope(SavedTensorKeeper& keeper);
  ~SavedTensorScope();
  SavedTensorScope(const SavedTensorScope&) = delete;
  SavedTensorScope& operator=(const SavedTensorScope&) = delete;
};

}  // namespace accelerate::detail
