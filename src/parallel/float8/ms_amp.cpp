#include "parallel/float8/ms_amp.h"

#include <utility>
#include <vector>

#include "parallel/float8/scaled_gradients.h"
#include "parallel/float8/scaled_moments.h"
#include "precision/fp8/float8_layers.h"

namespace accelerate::detail {

namespace {

class MsAmp final : public Strategy {
 public:
  MsAmp(
      const Mesh& mesh,
      const MSAMPRecipeKwargs& recipe,
      std::int64_t message_bytes)
      : mesh_(mesh),
        recipe_(recipe),
        packs_moments_(*recipe.opt_level == "O2"),
        message_bytes_(message_bytes) {}

  [[nodiscard]] StrategyTraits traits() const override {
    return {
        .join_complaint =
            "[parallel] the ranks of a model that trains by MS-AMP's recipe "
            "agree on scales of gradients at each step, so all must take every "
            "step; use even_batches, or another recipe",
        .lomo_complaint =
            "[parallel] lomo_backward() keeps no gradients, but MS-AMP's "
            "recipe defines how they are kept; use AORecipeKwargs or "
            "TERecipeKwargs"};
  }

  void prepare(torch::nn::Module& module, ParameterTable& table) override {
    table_ = &table;
    std::vector<at::Tensor> weights;
    for (const LinearLayer& layer :
         choose_linear_layers(module, layer_rule_of(recipe_))) {
      if (!layer.choice.is_float8) continue;
      Parameter* const row = row_of(layer.weight, table);
      // A weight shared by two layers is one row.
      if (row == nullptr || !row->tensor.requires_grad() ||
          std::exchange(row->is_averaged_apart, true)) {
        continue;
      }
      row->policy = "gradient in float8";
      weights.push_back(row->tensor);
    }
    gradients_ = std::make_unique<ScaledGradients>(
        std::move(weights), mesh_.gradient_group(), message_bytes_);
  }

  void bind(torch::optim::Optimizer& optimizer, const ParameterTable& table)
      override {
    if (packs_moments_) ScaledMoments::require_adam(optimizer, table);
  }

  void after_backward(bool sync_gradients) override {
    if (sync_gradients) gradients_->average();
  }
  void after_plain_backward(bool sync_gradients) override {
    after_backward(sync_gradients);
  }
  void step_locally(bool is_local) override {
    // With replicas only, no backward syncs in the meantime.
    if (mesh_.degree(Axis::context) == 1) return;
    gradients_->average_among(
        is_local ? mesh_.group(Axis::context) : mesh_.gradient_group());
  }
  void before_step() override { gradients_->restore(); }
  void drop_gradient(const at::Tensor& parameter) override {
    gradients_->drop(parameter);
  }

  void pack_optimizer_state(torch::optim::Optimizer& optimizer) override {
    if (packs_moments_) moments_.pack(optimizer, *table_);
  }
  void unpack_optimizer_state(torch::optim::Optimizer& optimizer) override {
    if (packs_moments_) moments_.unpack(optimizer, *table_);
  }

 private:
  static Parameter* row_of(const at::Tensor& weight, ParameterTable& table) {
    for (Parameter& row : table.rows())
      if (row.tensor.is_same(weight)) return &row;
    return nullptr;
  }

  Mesh mesh_;
  MSAMPRecipeKwargs recipe_;
  bool packs_moments_;
  std::int64_t message_bytes_;
  const ParameterTable* table_ = nullptr;
  std::unique_ptr<ScaledGradients> gradients_;
  ScaledMoments moments_;
};

}  // namespace

std::unique_ptr<Strategy> make_ms_amp(
    const Mesh& mesh,
    const MSAMPRecipeKwargs& recipe,
    std::int64_t message_bytes) {
  return std::make_unique<MsAmp>(mesh, recipe, message_bytes);
}

}  // namespace accelerate::detail
