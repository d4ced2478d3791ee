#include <utility>

#include "parallel/shard/prepare/bind_locals.h"
#include "parallel/shard/prepare/units.h"
#include "parallel/shard/shard.h"

namespace accelerate::detail {

namespace {

class ShardOfOne final : public Strategy {
 public:
  explicit ShardOfOne(ShardOptions options) : options_(std::move(options)) {}

  [[nodiscard]] StrategyTraits traits() const override {
    StrategyTraits traits = refusals_of_shard();
    traits.is_idle = true;
    return traits;
  }

  void prepare(torch::nn::Module& module, ParameterTable& table) override {
    // Throws for a policy or an expression that does not fit the model.
    const UnitPlan plan =
        plan_units(module, table, options_.units, options_.ignored_modules);
    for (const WrapUnit& unit : plan.units) {
      for (const Parameter* row : unit.rows) sharded_.push_back(row->tensor);
    }
  }

  void bind(torch::optim::Optimizer& optimizer, const ParameterTable& table)
      override {
    for (const at::Tensor& parameter : sharded_)
      require_movable_state(optimizer, table, parameter);
  }

 private:
  ShardOptions options_;
  /// Parameters that several ranks would shard.
  std::vector<at::Tensor> sharded_;
};

}  // namespace

StrategyTraits refusals_of_shard() {
  return {
      .join_complaint =
          "[parallel] all ranks of a sharded model must take every step; use "
          "even_batches, or replicate the model",
      .local_sgd_complaint =
          "[parallel] LocalSGD averages full models, but this one is sharded; "
          "use it with replicate alone",
      .lomo_complaint =
          "[parallel] lomo_backward() updates full parameters, but a prepared "
          "model is sharded; use backward() and another optimizer"};
}

std::unique_ptr<Strategy> make_shard_of_one(const ShardOptions& options) {
  return std::make_unique<ShardOfOne>(options);
}

}  // namespace accelerate::detail
