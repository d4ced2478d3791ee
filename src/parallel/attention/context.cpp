#include <memory>

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/rnn.h>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "parallel/attention/attention_layers.h"
#include "parallel/strategy.h"

namespace accelerate::detail {

namespace {

/// Throws ConfigError for a layer that mixes positions without attention, and
/// so would see only this rank's.
void check_layers(const torch::nn::Module& model) {
  for (const auto& item : model.named_modules()) {
    const torch::nn::Module& layer = *item.value();
    const bool is_recurrent = layer.as<torch::nn::RNNImpl>() != nullptr ||
        layer.as<torch::nn::LSTMImpl>() != nullptr ||
        layer.as<torch::nn::GRUImpl>() != nullptr;
    if (!is_recurrent) continue;
    throw ConfigError(format(
        "[parallel] context divides sequences, but {} is a recurrent layer, "
        "which would see this rank's positions only; set context to 1",
        item.key().empty() ? "the model" : item.key()));
  }
}

class Context final : public Strategy {
 public:
  void prepare(torch::nn::Module& model, ParameterTable&) override {
    check_layers(model);
    for (const auto& item : model.named_modules()) {
      if (item.value()->as<torch::nn::MultiheadAttentionImpl>() != nullptr)
        attention_layers_->watch(item.key(), *item.value());
    }
  }

 private:
  /// Lives as long as the weights.
  std::shared_ptr<AttentionLayers> attention_layers_ =
      std::make_shared<AttentionLayers>();
};

}  // namespace

std::unique_ptr<Strategy> make_context() { return std::make_unique<Context>(); }

}  // namespace accelerate::detail
