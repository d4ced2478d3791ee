#include "parallel/context/context.h"

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/rnn.h>

#include <accelerate/error.h>

#include "base/text.h"

namespace accelerate::detail {

namespace {

/// Throws ConfigError for a layer that mixes positions without
/// scaled_dot_product_attention, and so would see those of this rank only.
void check_layers(const torch::nn::Module& model) {
  for (const auto& item : model.named_modules()) {
    const torch::nn::Module& layer = *item.value();
    const bool is_attention =
        layer.as<torch::nn::MultiheadAttentionImpl>() != nullptr;
    const bool is_recurrent = layer.as<torch::nn::RNNImpl>() != nullptr ||
        layer.as<torch::nn::LSTMImpl>() != nullptr ||
        layer.as<torch::nn::GRUImpl>() != nullptr;
    if (!is_attention && !is_recurrent) continue;
    throw ConfigError(format(
        "[parallel] context divides sequences, but {} is {}, which would see "
        "this rank's positions only; {}",
        item.key().empty() ? "the model" : item.key(),
        is_attention ? "torch::nn::MultiheadAttention" : "a recurrent layer",
        is_attention ? "use scaled_dot_product_attention, or set context to 1"
                     : "set context to 1"));
  }
}

class Context final : public Strategy {
 public:
  [[nodiscard]] StrategyTraits traits() const override {
    return {
        .local_sgd_complaint =
            "[parallel] with LocalSGD the parameters of ranks differ between "
            "averages, but ranks that share a sequence need the same ones; "
            "set context to 1"};
  }

  void prepare(torch::nn::Module& model, ParameterTable&) override {
    check_layers(model);
  }
};

}  // namespace

std::unique_ptr<Strategy> make_context() { return std::make_unique<Context>(); }

}  // namespace accelerate::detail
