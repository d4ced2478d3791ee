#include "train/step/step_watch.h"

#include <mutex>
#include <unordered_set>
#include <utility>
#include <vector>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <accelerate/error.h>

#include "base/text/text.h"

namespace accelerate::detail {

namespace {

thread_local int num_library_calls = 0;

bool is_of_program() {
  return num_library_calls == 0 &&
      torch::autograd::get_current_graph_task_id() < 0;
}

}  // namespace

LibraryCall::LibraryCall() { ++num_library_calls; }
LibraryCall::~LibraryCall() { --num_library_calls; }

struct StepWatch::State {
  /// A tensor whose gradient the program has read, and its values then.
  struct Read {
    std::string name;
    at::Tensor local;
    at::Tensor before;
  };

  void note(const std::string& name, const at::Tensor& local) {
    const std::lock_guard lock(mutex);
    if (!noted.insert(local.unsafeGetTensorImpl()).second) return;
    const at::NoGradGuard no_grad;
    reads.push_back({name, local, local.detach().clone()});
  }

  std::mutex mutex;
  std::vector<Read> reads;
  std::unordered_set<const void*> noted;
  std::unordered_set<const void*> watched;
};

namespace {

// A gradient that reports its readers. It lives as long as its tensor, which
// may be longer than the watch.
template <class State>
class WatchedGradient final : public torch::autograd::AutogradMeta {
 public:
  WatchedGradient(
      std::weak_ptr<State> state,
      std::string name,
      const at::Tensor& tensor,
      const at::Tensor& local)
      : AutogradMeta(local.unsafeGetTensorImpl(), local.requires_grad()),
        state_(std::move(state)),
        name_of_row_(std::move(name)),
        tensor_(tensor.getIntrusivePtr()),
        local_(local.unsafeGetTensorImpl()) {
    grad_ = local.grad();
  }

  const at::Tensor& grad() const override {
    if (is_of_program()) {
      require_own_gradient();
      const auto state = state_.lock();
      if (state && grad_.defined()) {
        state->note(
            name_of_row_,
            at::Tensor(
                c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>::
                    reclaim_copy(local_)));
      }
    }
    return grad_;
  }
  at::Tensor& mutable_grad() override {
    if (is_of_program()) require_own_gradient();
    return grad_;
  }

 private:
  void require_own_gradient() const {
    if (grad_.defined() || state_.expired()) return;
    const auto tensor = tensor_.lock();
    if (!tensor || !at::Tensor(tensor).grad().defined()) return;
    throw ConfigError(format(
        "[train] an optimizer was called directly, not through the handle that "
        "prepare() returned: the gradient of \"{}\" is still with the model's "
        "parameter, in place of which the optimizer has another tensor; call "
        "step() and zero_grad() of the handle",
        name_of_row_));
  }

  std::weak_ptr<State> state_;
  std::string name_of_row_;
  c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> tensor_;
  c10::TensorImpl* local_;  // its owner
};

}  // namespace

StepWatch::StepWatch() : state_(std::make_shared<State>()) {}
StepWatch::~StepWatch() = default;

void StepWatch::watch(
    const std::string& name,
    const at::Tensor& tensor,
    const at::Tensor& local) {
  if (!state_->watched.insert(local.unsafeGetTensorImpl()).second) return;
  local.unsafeGetTensorImpl()->set_autograd_meta(
      std::make_unique<WatchedGradient<State>>(state_, name, tensor, local));
}

void StepWatch::require_steps_of_handles() {
  if (state_->reads.empty()) return;
  const auto reads = std::exchange(state_->reads, {});
  forget();
  const at::NoGradGuard no_grad;
  for (const State::Read& read : reads) {
    if (at::equal(read.local, read.before)) continue;
    throw ConfigError(format(
        "[train] an optimizer was stepped directly, not through the handle "
        "that prepare() returned: the optimizer's tensor for \"{}\" changed, "
        "but the model's parameter, another tensor, did not; call step() of "
        "the handle",
        read.name));
  }
}

void StepWatch::forget() {
  const std::lock_guard lock(state_->mutex);
  state_->reads.clear();
  state_->noted.clear();
}

}  // namespace accelerate::detail
