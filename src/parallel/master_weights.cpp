#include "parallel/master_weights.h"

#include <utility>
#include <vector>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

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
        "master_weights would overwrite them; leave master_weights out: LOMO "
        "computes updates in full precision";
    return traits;
  }

  void prepare(torch::nn::Module&, ParameterTable& table) override {
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
    }
  }

  // Masters are filled only here: until every strategy is prepared, weights may
  // change.
  void bind(torch::optim::Optimizer& optimizer, const ParameterTable& table)
      override {
    const at::NoGradGuard no_grad;
    if (!std::exchange(are_filled_, true) && !masters_.empty()) {
      at::_foreach_copy_(masters_, models_);
    }
    bind_locals(optimizer, table);
  }

  void before_step() override {
    const at::NoGradGuard no_grad;
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
  std::vector<at::Tensor> models_;
  std::vector<at::Tensor> masters_;
  bool are_filled_ = false;
};

}  // namespace

std::unique_ptr<Strategy> make_master_weights() {
  return std::make_unique<MasterWeights>();
}

}  // namespace accelerate::detail
