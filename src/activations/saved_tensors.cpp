#include "activations/saved_tensors.h"

#include <mutex>
#include <utility>
#include <vector>

#include <torch/csrc/autograd/engine.h>

namespace accelerate::detail {

namespace {

// The keepers of open scopes, innermost last. Thread-local because a scope
// applies to its own thread's forward, where the engine asks for hooks.
thread_local std::vector<SavedTensorKeeper*> keepers;

// The type of the engine's graph root parameter, which differs between versions
// of LibTorch.
template <class Function>
struct RootParameter;
template <class Result, class Class, class Graph, class Root, class Buffer>
struct RootParameter<Result (Class::*)(Graph, Root, Buffer)> {
  using Type = Root;
};
using GraphRoot = RootParameter<
    decltype(&torch::autograd::Engine::execute_with_graph_task)>::Type;

class EngineWithHooks final : public torch::autograd::Engine {
 public:
  std::unique_ptr<torch::autograd::SavedVariableHooks>
  get_default_saved_variable_hooks() override {
    for (auto keeper = keepers.rbegin(); keeper != keepers.rend(); ++keeper) {
      if (auto hooks = (*keeper)->make_hooks()) return hooks;
    }
    return nullptr;
  }

  c10::intrusive_ptr<at::ivalue::Future> execute_with_graph_task(
      const std::shared_ptr<torch::autograd::GraphTask>& graph_task,
      GraphRoot graph_root,
      torch::autograd::InputBuffer&& input_buffer) override {
    std::call_once(has_threads_, [this] {
      initialize_device_threads_pool();
      // LibTorch starts the threads of only one engine per process: its own
      // engine's, if that has already run a backward.
      if (device_ready_queues_.empty()) start_device_threads();
    });
    return Engine::execute_with_graph_task(
        graph_task, std::move(graph_root), std::move(input_buffer));
  }

  // Never destroyed, like LibTorch's own engine: its threads can outlive main.
  static torch::autograd::Engine& instance() {
    static auto* const engine = new EngineWithHooks();
    return *engine;
  }

 private:
  std::once_flag has_threads_;
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
