#pragma once

#include <memory>

#include <torch/csrc/autograd/saved_variable_hooks.h>

namespace accelerate::detail {

/// Decides what autograd keeps in place of the tensors that operators of this
/// thread save for backward. It is asked once per saved tensor; null leaves the
/// tensor to the enclosing scope, or unchanged.
class SavedTensorKeeper {
 public:
  SavedTensorKeeper() = default;
  SavedTensorKeeper(const SavedTensorKeeper&) = delete;
  SavedTensorKeeper& operator=(const SavedTensorKeeper&) = delete;
  virtual ~SavedTensorKeeper() = default;

  virtual std::unique_ptr<torch::autograd::SavedVariableHooks> make_hooks() = 0;
};

/// While it lives, `keeper` is asked, before those of enclosing scopes.
/// Destroyed on the thread that made it, the innermost first.
///
/// Implementation: LibTorch asks its autograd engine for such hooks, and the
/// engine for C++ has none; the first scope of a process replaces it with one
/// that has them.
class SavedTensorScope {
 public:
  explicit SavedTensorScope(SavedTensorKeeper& keeper);
  ~SavedTensorScope();
  SavedTensorScope(const SavedTensorScope&) = delete;
  SavedTensorScope& operator=(const SavedTensorScope&) = delete;
};

}  // namespace accelerate::detail
