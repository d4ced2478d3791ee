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

PlainBackwards::PlainBackwards(PreparedModel& model) : model_(model) {
  model_.strategies.after_prepare([this] { begin(); });
  watch();
}

PlainBackwards::~PlainBackwards() {
  for (const Watched& watched : watched_) {
    if (watched.unhook) watched.unhook();
  }
}

bool PlainBackwards::watch() {
  const Session& session = *model_.session;
  // A single process needs to know only of losses that it would have divided or
  // scaled.
  if (model_.evaluation_mode ||
      (model_.strategies.is_idle() && session.clock.window() == 1 &&
       !session.scaler)) {
    return false;
  }
  bool missed = false;
  const auto& rows = model_.table.rows();
  watched_.resize(rows.size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const at::Tensor& tensor = rows[i].tensor;
    if (!tensor.requires_grad()) continue;
    const auto accumulator = torch::autograd::impl::grad_accumulator(tensor);
    Watched& watched = watched_[i];
    if (watched.accumulator == accumulator.get()) continue;
    if (watched.unhook) watched.unhook();
    const auto key = accumulator->add_post_hook(std::make_unique<Hook>(*this));
    // The accumulator and its hooks live only as long as something holds it.
    watched = {accumulator.get(), [accumulator, key] {
                 accumulator->del_post_hook(key);
               }};
    missed = missed || tensor.grad().defined();
  }
  missed = !std::exchange(is_first_watch_, false) && missed;
  if (!is_open_ || torch::autograd::get_current_graph_task_id() >= 0)
    return missed;
  is_open_ = false;
  const std::exception_ptr known =
      model_.strategies.on_failure(std::runtime_error("a backward failed"));
  static_cast<void>(known);  // The program has seen the failure itself.
  return true;
}

void PlainBackwards::on_gradient() {
  const Session& session = *model_.session;
  if (session.is_in_backward) return;
  if (session.scaler && session.scaler->is_enabled()) {
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
  if (session.is_in_backward || graph < 0) return;
  {
    const std::lock_guard lock(mutex_);
    // A backward inside of another one belongs to that one.
    if (std::exchange(is_open_, true)) return;
    graph_ = graph;
    sync_gradients_ = model_.sync_gradients;
  }
  model_.strategies.before_plain_backward(sync_gradients_);
  torch::autograd::Engine::get_default_engine().queue_callback(
      [this] { end(); });
}

void PlainBackwards::end() {
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
  if (std::exchange(session.last_plain_backward, graph_) == graph_) return;
  ++session.step.num_backwards;
  if (sync_gradients_ && session.world.size() > 1)
    ++*session.num_averaging_passes;
  const int window = session.clock.window();
  if (window == 1 || std::exchange(session.has_warned_of_plain_backward, true))
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
