#pragma once

#include <memory>
#include <utility>

#include <accelerate/export.h>

namespace accelerate {

/// While it lives, tensors that this thread makes by factory functions have
/// sizes and a dtype but no memory (the meta device): a model of any size is
/// built at once. Values come later: prepare() a sharded model and load into
/// it, whereby each rank gets only its shards, or load_model() into the module.
/// Accelerate's init_empty_weights, except that buffers are empty as well.
///
///     Net net = accelerate::init_empty_weights([] { return Net(); });
class ACCELERATE_API InitEmptyWeights {
 public:
  InitEmptyWeights();
  ~InitEmptyWeights();
  InitEmptyWeights(const InitEmptyWeights&) = delete;
  InitEmptyWeights& operator=(const InitEmptyWeights&) = delete;

 private:
  struct Scope;
  std::unique_ptr<Scope> scope_;
};

/// Calls `function` inside such a scope and returns its result.
template <class Function>
auto init_empty_weights(Function&& function) {
  const InitEmptyWeights scope;
  return std::forward<Function>(function)();
}

}  // namespace accelerate
