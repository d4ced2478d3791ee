#include "activations/saved_tensors.h"

#include <vector>

#include <torch/csrc/autograd/engine.h>

namespace accelerate::detail {

namespace {

// The keepers of open scopes, innermost last. Thread-local because a scope
// applies to the forward of its own thread, on which the engine asks for hooks.
thread_local std::vector<SavedTensorKeeper*> keepers;

class EngineWithHooks final : public torch::autograd::Engine {
 public:
  std::unique_ptr<torch::autograd::SavedVariableHooks>
  get_default_saved_variable_hooks() override {
    for (auto keeper = keepers.rbegin(); keeper != keepers.rend(); ++keeper) {
      if (auto hooks = (*keeper)->make_hooks()) return hooks;
    }
    return nullptr;
  }

  // Never destroyed, like LibTorch's own engine: its threads may outlive main.
  static torch::autograd::Engine& instance() {
    static auto* const engine = new EngineWithHooks();
    return *engine;
  }
};

}  // namespace

SavedTensorScope::SavedTensorScope(SavedTensorKeeper& keeper) {
  static const bool is_installed = [] {
    torch::autograd::set_default_engine_stub(&EngineWithHooks::instance);
    return true;
  }();
  static_cast<void>(is_installed);
  keepers.push_back(&keeper);
}

SavedTensorScope::~SavedTensorScope() { keepers.pop_back(); }

}  // namespace accelerate::detail
