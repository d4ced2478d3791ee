#include "train/step/plain_backwards.h"

#include <memory>
#include <stdexcept>

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "train/session/session.h"
#include "train/step/step_watch.h"

namespace accelerate::detail {

class PlainBackwards::Hook final : public torch::autograd::FunctionPostHook {
 public:
  explicit Hook(PlainBackwards& backwards) : backwards_(backwards) {}

  torch::autograd::variable_list operator()(
      const torch::autograd::variable_list& outputs,
      const torch::autograd::variable_list&) override {
    backwards_.on_gradient();
    return outputs;
  }

 private:
  PlainBackwards& backwards_;
};

PlainBackwards::PlainBackwards(PreparedModel& model, ModelCalls calls)
    : model_(model) {
  calls.begin_plain_backward = [this] { begin(); };
  model_.strategies.after_prepare(calls);
  watch();
}

PlainBackwards::~PlainBackwards() {
  for (const Watched& watched : watched_) watched.end();
}

void PlainBackwards::Watched::end() const {
  if (unhook_tensor) unhook_tensor();
  if (unhook) unhook();
}

bool PlainBackwards::watch() {
  const Session& session = *model_.session;
  // A single process needs to know only of losses that it would have divided or
  // scaled.
  if (model_.evaluation_mode ||
      (model_.strategies.is_idle() && session.clock.window() == 1 &&
       !session.scaling.scaler)) {
    return false;
  }
  const bool has_gradients = hook_accumulators();
  const bool missed = !std::exchange(is_first_watch_, false) && has_gradients;
  if (!is_open_ || torch::autograd::get_current_graph_task_id() >= 0)
    return missed;
  is_open_ = false;
  const std::exception_ptr known =
      model_.strategies.on_failure(std::runtime_error("a backward failed"));
  static_cast<void>(known);  // The program has seen the failure itself.
  return true;
}

bool PlainBackwards::hook_accumulators() {
  const std::lock_guard lock(hooks_mutex_);
  bool has_gradients = false;
  const auto& rows = model_.table.rows();
  // The program may have removed parameters.
  for (std::size_t i = rows.size(); i < watched_.size(); ++i) watched_[i].end();
  watched_.resize(rows.size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const at::Tensor& tensor = rows[i].tensor;
    Watched& watched = watched_[i];
    if (watched.tensor != tensor.unsafeGetTensorImpl()) hook_tensor(i);
    if (!tensor.requires_grad()) continue;
    const auto accumulator = torch::autograd::impl::grad_accumulator(tensor);
    if (watched.accumulator == accumulator.get()) continue;
    if (watched.unhook) watched.unhook();
    const auto key = accumulator->add_post_hook(std::make_unique<Hook>(*this));
    // The accumulator and its hooks live only as long as something holds it.
    watched.accumulator = accumulator.get();
    watched.unhook = [accumulator, key] { accumulator->del_post_hook(key); };
    has_gradients = has_gradients || tensor.grad().defined();
  }
  return has_gradients;
}

void PlainBackwards::hook_tensor(std::size_t row) {
  const at::Tensor& tensor = model_.table.rows()[row].tensor;
  Watched& watched = watched_[row];
  if (watched.unhook_tensor) watched.unhook_tensor();
  watched.unhook_tensor = nullptr;
  watched.tensor = tensor.unsafeGetTensorImpl();
  const bool is_frozen = !tensor.requires_grad();
  const bool may_train = tensor.is_floating_point() || tensor.is_complex();
  if (is_frozen && (!may_train || tensor.is_inference())) return;
  // LibTorch hooks only what is trained, but a parameter that is unfrozen later
  // needs its hook.
  tensor.set_requires_grad(true);
  const unsigned key = tensor.register_hook(
      [this, row](const at::Tensor&) { before_gradient(row); });
  tensor.set_requires_grad(!is_frozen);
  watched.unhook_tensor = [tensor, key] { tensor.remove_hook(key); };
}

void PlainBackwards::before_gradient(std::size_t row) {
  if (model_.session->window.is_in_backward) return;
  {
    const std::lock_guard lock(hooks_mutex_);
    const at::Tensor& tensor = model_.table.rows()[row].tensor;
    const auto accumulator = torch::autograd::impl::grad_accumulator(tensor);
    if (watched_[row].accumulator == accumulator.get()) return;
  }
  // If no handle was called since the change, nothing else has noticed it.
  hook_accumulators();
}

void PlainBackwards::on_gradient() {
  const Session& session = *model_.session;
  if (session.window.is_in_backward) return;
  if (session.scaling.scaler && session.scaling.scaler->is_enabled()) {
    throw ConfigError(
        "[train] loss.backward() reached a prepared model, but fp16 needs a "
        "scaled loss: call accelerator.backward(loss), which scales it");
  }
  begin();
  is_reached_ = true;
}

void PlainBackwards::begin() {
  const Session& session = *model_.session;
  const int graph = torch::autograd::get_current_graph_task_id();
  if (session.window.is_in_backward || graph < 0) return;
  {
    const std::lock_guard lock(mutex_);
    // A backward inside of another one belongs to that one.
    if (std::exchange(is_open_, true)) return;
    graph_ = graph;
    sync_gradients_ = model_.sync_gradients;
  }
  const LibraryCall call;
  if (sync_gradients_) notice_changes(*model_.session);
  model_.strategies.before_plain_backward(sync_gradients_);
  torch::autograd::Engine::get_default_engine().queue_callback(
      [this] { end(); });
}

void PlainBackwards::end() {
  const LibraryCall call;
  is_open_ = false;
  if (std::exchange(is_reached_, false)) count();
  try {
    model_.strategies.after_plain_backward(sync_gradients_);
  } catch (const std::exception& error) {
    if (const auto better = model_.strategies.on_failure(error))
      std::rethrow_exception(better);
    throw;
  }
}

// What Accelerator::backward() counts, once for all models that it reaches.
void PlainBackwards::count() const {
  Session& session = *model_.session;
  if (std::exchange(session.window.last_plain_backward, graph_) == graph_)
    return;
  count_backward(session);
  if (sync_gradients_ && session.world.size() > 1)
    ++*session.window.num_averaging_passes;
  const int window = session.clock.window();
  if (window == 1 ||
      std::exchange(session.window.has_warned_of_plain_backward, true))
    return;
  session.world.logger().log_once_per_world(
      LogLevel::warning,
      "train",
      format(
          "gradient_accumulation_steps is {}, but loss.backward() was called: "
          "the loss is not divided by {}, so that gradients are the sum of the "
          "micro-steps'; call accelerator.backward(loss), or divide it",
          window,
          window));
}

}  // namespace accelerate::detail
