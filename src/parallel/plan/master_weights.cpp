#include "parallel/plan/master_weights.h"

#include <cstddef>
#include <mutex>
#include <utility>
#include <vector>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "gate/gate.h"
#include "parallel/full_scope.h"
#include "parallel/precise_view.h"
#include "parallel/shard/prepare/bind_locals.h"

namespace accelerate::detail {

namespace {

class MasterWeights final : public Strategy {
 public:
  [[nodiscard]] StrategyTraits traits() const override {
    StrategyTraits traits;
    if (masters_.empty()) return traits;
    traits.lomo_complaint =
        "[parallel] lomo_backward() updates the model's own parameters, but "
        "master_weights would overwrite them; leave out master_weights: LOMO "
        "computes updates in full precision";
    return traits;
  }

  void prepare(torch::nn::Module&, ParameterTable& table) override {
    table_ = &table;
    for (Parameter& row : table.rows()) {
      if (!row.tensor.requires_grad() ||
          !at::isReducedFloatingType(row.tensor.scalar_type())) {
        continue;
      }
      const auto options =
          row.tensor.options().dtype(at::kFloat).requires_grad(false);
      table.set_local(
          row, at::empty_like(row.tensor, options).requires_grad_(true));
      models_.push_back(row.tensor);
      masters_.push_back(row.local);
      is_slice_.push_back(!row.layout.is_unsharded());
    }
    fill_masters();
  }

  void bind(torch::optim::Optimizer& optimizer, const ParameterTable& table)
      override {
    if (!std::exchange(is_bound_, true)) refill_masters();
    bind_locals(optimizer, table);
  }

  // Sharded weights are loaded into the masters.
  void after_load() override {
    const at::NoGradGuard no_grad;
    const BypassGates bypass;
    for (std::size_t i = 0; i < models_.size(); ++i) {
      if (is_slice_[i]) models_[i].copy_(masters_[i]);
    }
  }

  void before_forward() override {
    if (views_.empty()) return;
    const std::lock_guard lock(mutex_);
    if (num_forwards_++ > 0) return;
    for (PreciseView& view : views_) view.begin_forward();
  }
  void after_forward(const ForwardOutputs&) override {
    if (views_.empty()) return;
    const std::lock_guard lock(mutex_);
    if (--num_forwards_ <= 0) end_forwards();
  }
  void on_failure(const std::exception&) override {
    if (views_.empty()) return;
    const std::lock_guard lock(mutex_);
    end_forwards();
  }

  void before_backward(bool, const at::Tensor&) override {
    full_.require_closed();
  }
  void before_plain_backward(bool) override { full_.require_closed(); }

  [[nodiscard]] std::shared_ptr<void> unshard_parameters() override {
    return masters_.empty() ? nullptr : full_.enter();
  }
  void bind_added(
      torch::optim::Optimizer& optimizer,
      const ParameterTable& table) override {
    bind_locals(optimizer, table);
  }

  void before_step() override {
    const at::NoGradGuard no_grad;
    require_masters();
    for (std::size_t i = 0; i < models_.size(); ++i) {
      at::Tensor& gradient = models_[i].mutable_grad();
      if (!gradient.defined()) continue;
      at::Tensor& master = masters_[i].mutable_grad();
      if (master.defined()) {
        master.add_(gradient);
      } else {
        master = gradient.to(at::kFloat);
      }
      gradient.reset();
    }
  }

  void after_step() override {
    if (masters_.empty()) return;
    const at::NoGradGuard no_grad;
    at::_foreach_copy_(models_, masters_);
  }

 private:
  void fill_masters() {
    const at::NoGradGuard no_grad;
    const BypassGates bypass;
    for (std::size_t i = 0; i < models_.size(); ++i)
      masters_[i].copy_(models_[i]);
  }

  // Other strategies, and the program until it prepares an optimizer, may have
  // changed weights. Masters of the other weights may have more digits.
  void refill_masters() {
    const at::NoGradGuard no_grad;
    const BypassGates bypass;
    for (std::size_t i = 0; i < models_.size(); ++i) {
      if (!at::equal(models_[i], masters_[i].to(models_[i].scalar_type())))
        masters_[i].copy_(models_[i]);
    }
  }

  void end_forwards() {
    num_forwards_ = 0;
    for (PreciseView& view : views_) view.end_forward();
  }

  // The model shows the memory of the masters, so that its changes are theirs.
  void show_masters() {
    if (!is_bound_) refill_masters();
    for (std::size_t i = 0; i < models_.size(); ++i)
      views_.emplace_back(models_[i], masters_[i].detach());
  }

  void hide_masters() {
    const at::NoGradGuard no_grad;
    const BypassGates bypass;
    for (std::size_t i = 0; i < models_.size(); ++i) {
      const bool is_changed = views_[i].is_changed();
      views_[i].hide();
      if (is_changed) models_[i].copy_(masters_[i]);
    }
    views_.clear();
  }

  void require_masters() const {
    for (const Parameter& row : table_->rows()) {
      if (!row.tensor.requires_grad() || !row.local.is_same(row.tensor) ||
          !at::isReducedFloatingType(row.tensor.scalar_type())) {
        continue;
      }
      throw ConfigError(format(
          "[parallel] parameter \"{}\" is trained in 16 bits, but was not when "
          "it was prepared (it was frozen, or in another dtype), so it has no "
          "master weight; change it before prepare(), or "
          "prepare the model anew",
          row.name));
    }
  }

  const ParameterTable* table_ = nullptr;
  std::vector<at::Tensor> models_;
  std::vector<at::Tensor> masters_;
  std::vector<bool> is_slice_;
  bool is_bound_ = false;
  /// One per master while full_parameters() lives.
  std::vector<PreciseView> views_;
  /// Forwards may run on several threads.
  std::mutex mutex_;
  int num_forwards_ = 0;
  FullScope full_{[this] { show_masters(); }, [this] { hide_masters(); }};
};

}  // namespace

std::unique_ptr<Strategy> make_master_weights() {
  return std::make_unique<MasterWeights>();
}

}  // namespace accelerate::detail
