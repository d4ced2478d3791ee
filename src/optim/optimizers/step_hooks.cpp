#include "optim/optimizers/step_hooks.h"

#include <utility>

namespace accelerate::detail {

namespace {
// Thread-local because optimizers of LibTorch's classes have no other way to
// pass it on to step().
thread_local StepHooks* hooks_of_thread = nullptr;
}  // namespace

StepHooks* StepHooks::current() { return hooks_of_thread; }

RecordingHooks* StepHooks::recording() {
  StepHooks* const hooks = current();
  return hooks != nullptr ? hooks->recorder() : nullptr;
}

StepHooksScope::StepHooksScope(StepHooks& hooks)
    : before_(std::exchange(hooks_of_thread, &hooks)) {}

StepHooksScope::~StepHooksScope() { hooks_of_thread = before_; }

}  // namespace accelerate::detail
