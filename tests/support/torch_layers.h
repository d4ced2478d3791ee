#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <torch/nn.h>
#include <torch/types.h>

namespace accelerate::testing {

/// A layer of torch::nn that has weights, and an input for it.
struct LayerCase {
  std::string name;
  std::function<std::shared_ptr<torch::nn::Module>()> make;
  /// The first result of the layer's forward.
  std::function<torch::Tensor(torch::nn::Module&, const torch::Tensor&)>
      forward;
  torch::Tensor input;
};

inline std::ostream& operator<<(std::ostream& out, const LayerCase& layer) {
  return out << layer.name;
}

namespace layers {

inline torch::Tensor first(torch::Tensor result) { return result; }

template <class... Results>
torch::Tensor first(const std::tuple<torch::Tensor, Results...>& results) {
  return std::get<0>(results);
}

/// Deterministic values around 0, of different signs and sizes.
inline torch::Tensor values(
    std::vector<std::int64_t> sizes,
    torch::ScalarType dtype = torch::kDouble) {
  std::int64_t count = 1;
  for (const std::int64_t size : sizes) count *= size;
  return torch::sin(torch::arange(count).to(dtype) * 0.9 + 0.2).view(sizes);
}

inline torch::Tensor indices(std::vector<std::int64_t> sizes) {
  std::int64_t count = 1;
  for (const std::int64_t size : sizes) count *= size;
  return (torch::arange(count) * 3 % 5).view(sizes);
}

/// `Impl`: the module; it is called with `num_inputs` times the input.
template <class Impl, std::size_t num_inputs = 1, class Options>
LayerCase layer(std::string name, Options options, torch::Tensor input) {
  return {
      std::move(name),
      [options] { return std::make_shared<Impl>(options); },
      [](torch::nn::Module& module, const torch::Tensor& x) {
        Impl& made = dynamic_cast<Impl&>(module);
        if constexpr (num_inputs == 1) return first(made.forward(x));
        if constexpr (num_inputs == 2) return first(made.forward(x, x));
        if constexpr (num_inputs == 3) return first(made.forward(x, x, x));
      },
      std::move(input)};
}

inline std::string
described(const std::string& name, std::int64_t num_dims, bool has_bias) {
  return name + ", " + std::to_string(num_dims) + "-D input, " +
      (has_bias ? "bias" : "no bias");
}

/// Linear(4, 6) with inputs of 1 to 4 dimensions, with and without bias.
inline std::vector<LayerCase> linear(torch::ScalarType dtype = torch::kDouble) {
  namespace nn = torch::nn;
  std::vector<LayerCase> all;
  for (const bool bias : {true, false}) {
    for (std::size_t num_dims = 1; num_dims <= 4; ++num_dims) {
      std::vector<std::int64_t> sizes{2, 1, 3, 4};
      sizes.erase(sizes.begin(), sizes.end() - static_cast<long>(num_dims));
      all.push_back(layer<nn::LinearImpl>(
          described("Linear", static_cast<std::int64_t>(num_dims), bias),
          nn::LinearOptions(4, 6).bias(bias),
          values(sizes, dtype)));
    }
  }
  return all;
}

/// MultiheadAttention and the layers of a Transformer, without dropout.
inline std::vector<LayerCase> attention(
    torch::ScalarType dtype = torch::kDouble) {
  namespace nn = torch::nn;
  std::vector<LayerCase> all;
  for (const bool bias : {true, false}) {
    all.push_back(layer<nn::MultiheadAttentionImpl, 3>(
        described("MultiheadAttention", 3, bias),
        nn::MultiheadAttentionOptions(4, 2).bias(bias),
        values({3, 2, 4}, dtype)));
    LayerCase cross = layer<nn::MultiheadAttentionImpl, 3>(
        described("MultiheadAttention of other keys", 3, bias),
        nn::MultiheadAttentionOptions(4, 2).bias(bias).kdim(4).vdim(4),
        values({3, 2, 4}, dtype));
    cross.forward = [](nn::Module& module, const torch::Tensor& x) {
      return std::get<0>(
          dynamic_cast<nn::MultiheadAttentionImpl&>(module).forward(
              x, x * 2, x * 3));
    };
    all.push_back(std::move(cross));
  }
  all.push_back(layer<nn::TransformerEncoderLayerImpl>(
      "TransformerEncoderLayer",
      nn::TransformerEncoderLayerOptions(4, 2).dim_feedforward(8).dropout(0),
      values({3, 2, 4}, dtype)));
  all.push_back(layer<nn::TransformerDecoderLayerImpl, 2>(
      "TransformerDecoderLayer",
      nn::TransformerDecoderLayerOptions(4, 2).dim_feedforward(8).dropout(0),
      values({3, 2, 4}, dtype)));
  return all;
}

/// Every other layer that has weights.
inline std::vector<LayerCase> others() {
  namespace nn = torch::nn;
  std::vector<LayerCase> all;
  for (const bool bias : {true, false}) {
    const auto named = [&](const char* name, std::int64_t num_dims) {
      return described(name, num_dims, bias);
    };
    for (const std::int64_t num_dims : {1, 2, 3, 4}) {
      std::vector<std::int64_t> sizes{2, 1, 3, 4};
      sizes.erase(sizes.begin(), sizes.end() - num_dims);
      if (num_dims > 1) {
        all.push_back(layer<nn::BilinearImpl, 2>(
            named("Bilinear", num_dims),
            nn::BilinearOptions(4, 4, 3).bias(bias),
            values(sizes)));
      }
      all.push_back(layer<nn::LayerNormImpl>(
          named("LayerNorm", num_dims),
          nn::LayerNormOptions({4}).elementwise_affine(bias),
          values(sizes)));
    }
    all.push_back(layer<nn::Conv1dImpl>(
        named("Conv1d", 3),
        nn::Conv1dOptions(2, 4, 3).bias(bias),
        values({2, 2, 5})));
    all.push_back(layer<nn::Conv2dImpl>(
        named("Conv2d, circular", 4),
        nn::Conv2dOptions(2, 4, 3).bias(bias).padding(1).padding_mode(
            torch::kCircular),
        values({2, 2, 5, 4})));
    all.push_back(layer<nn::Conv3dImpl>(
        named("Conv3d", 5),
        nn::Conv3dOptions(2, 4, 2).bias(bias),
        values({1, 2, 3, 4, 3})));
    all.push_back(layer<nn::ConvTranspose1dImpl>(
        named("ConvTranspose1d", 3),
        nn::ConvTranspose1dOptions(2, 4, 3).bias(bias),
        values({2, 2, 5})));
    all.push_back(layer<nn::ConvTranspose2dImpl>(
        named("ConvTranspose2d", 4),
        nn::ConvTranspose2dOptions(2, 4, 2).bias(bias),
        values({2, 2, 3, 4})));
    all.push_back(layer<nn::ConvTranspose3dImpl>(
        named("ConvTranspose3d", 5),
        nn::ConvTranspose3dOptions(2, 4, 2).bias(bias),
        values({1, 2, 3, 2, 2})));
    all.push_back(layer<nn::RNNImpl>(
        named("RNN", 3), nn::RNNOptions(4, 3).bias(bias), values({3, 2, 4})));
    all.push_back(layer<nn::LSTMImpl>(
        named("LSTM", 3),
        nn::LSTMOptions(4, 3).bias(bias).num_layers(2).bidirectional(true),
        values({3, 2, 4})));
    all.push_back(layer<nn::GRUImpl>(
        named("GRU", 3), nn::GRUOptions(4, 3).bias(bias), values({3, 2, 4})));
    all.push_back(layer<nn::RNNCellImpl>(
        named("RNNCell", 2),
        nn::RNNCellOptions(4, 3).bias(bias),
        values({2, 4})));
    all.push_back(layer<nn::LSTMCellImpl>(
        named("LSTMCell", 2),
        nn::LSTMCellOptions(4, 3).bias(bias),
        values({2, 4})));
    all.push_back(layer<nn::GRUCellImpl>(
        named("GRUCell", 2),
        nn::GRUCellOptions(4, 3).bias(bias),
        values({2, 4})));
  }
  for (const std::int64_t num_dims : {2, 3}) {
    std::vector<std::int64_t> sizes{3, 4, 5};
    sizes.resize(static_cast<std::size_t>(num_dims));
    all.push_back(layer<nn::BatchNorm1dImpl>(
        "BatchNorm1d, " + std::to_string(num_dims) + "-D input",
        nn::BatchNorm1dOptions(4),
        values(sizes)));
    all.push_back(layer<nn::PReLUImpl>(
        "PReLU, " + std::to_string(num_dims) + "-D input",
        nn::PReLUOptions().num_parameters(4),
        values(sizes)));
    all.push_back(layer<nn::EmbeddingBagImpl>(
        "EmbeddingBag",
        nn::EmbeddingBagOptions(5, 4).mode(torch::kSum),
        indices({2, num_dims})));
  }
  all.push_back(layer<nn::BatchNorm2dImpl>(
      "BatchNorm2d", nn::BatchNorm2dOptions(4), values({3, 4, 2, 3})));
  all.push_back(layer<nn::BatchNorm3dImpl>(
      "BatchNorm3d", nn::BatchNorm3dOptions(4), values({2, 4, 2, 3, 2})));
  all.push_back(layer<nn::InstanceNorm1dImpl>(
      "InstanceNorm1d",
      nn::InstanceNorm1dOptions(4).affine(true).track_running_stats(true),
      values({3, 4, 5})));
  all.push_back(layer<nn::InstanceNorm2dImpl>(
      "InstanceNorm2d",
      nn::InstanceNorm2dOptions(4).affine(true),
      values({3, 4, 2, 5})));
  all.push_back(layer<nn::GroupNormImpl>(
      "GroupNorm", nn::GroupNormOptions(2, 4), values({3, 4, 5})));
  for (const std::int64_t num_dims : {1, 2, 3}) {
    std::vector<std::int64_t> sizes{2, 3, 2};
    sizes.resize(static_cast<std::size_t>(num_dims));
    all.push_back(layer<nn::EmbeddingImpl>(
        "Embedding, " + std::to_string(num_dims) + "-D input",
        nn::EmbeddingOptions(5, 4),
        indices(sizes)));
  }
  return all;
}

/// All of the above.
inline std::vector<LayerCase> all() {
  std::vector<LayerCase> cases = linear();
  for (const auto& more : {attention(), others()})
    cases.insert(cases.end(), more.begin(), more.end());
  return cases;
}

/// A module of the case, with deterministic values in `dtype`.
inline std::shared_ptr<torch::nn::Module> make(
    const LayerCase& layer,
    torch::ScalarType dtype = torch::kDouble) {
  const torch::NoGradGuard no_grad;
  auto module = layer.make();
  module->to(dtype);
  double shift = 0.3;
  for (torch::Tensor& parameter : module->parameters()) {
    parameter.copy_(torch::cos(torch::arange(parameter.numel()) * 1.3 + shift)
                        .mul(0.4)
                        .view(parameter.sizes()));
    shift += 0.7;
  }
  return module;
}

}  // namespace layers

}  // namespace accelerate::testing
