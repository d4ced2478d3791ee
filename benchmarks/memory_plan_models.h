#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <torch/torch.h>

// Models whose memory is planned and measured.
namespace accelerate::benchmarks {

/// A multi-layer perceptron with a residual.
struct BlockImpl : torch::nn::Module {
  BlockImpl(std::int64_t width, std::int64_t inner, bool is_normed)
      : up(register_module("up", torch::nn::Linear(width, inner))),
        down(register_module("down", torch::nn::Linear(inner, width))) {
    if (is_normed) {
      norm = register_module(
          "norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})));
    }
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return x + down(torch::gelu(up(norm ? norm(x) : x)));
  }
  torch::nn::Linear up;
  torch::nn::Linear down;
  torch::nn::LayerNorm norm{nullptr};
};
TORCH_MODULE(Block);

/// Causal attention and a perceptron, each after a normalization.
struct LayerImpl : torch::nn::Module {
  LayerImpl(std::int64_t width, std::int64_t heads)
      : num_heads(heads),
        qkv(register_module("qkv", torch::nn::Linear(width, 3 * width))),
        out(register_module("out", torch::nn::Linear(width, width))),
        norm(register_module(
            "norm",
            torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})))),
        mlp(register_module("mlp", Block(width, 4 * width, true))) {}
  torch::Tensor forward(const torch::Tensor& x) {
    const auto parts = qkv(norm(x)).chunk(3, -1);
    const auto split = [&](const torch::Tensor& each) {
      return each.view({x.size(0), x.size(1), num_heads, -1}).transpose(1, 2);
    };
    const auto attended = torch::scaled_dot_product_attention(
        split(parts[0]), split(parts[1]), split(parts[2]), {}, 0.0, true);
    return mlp(x + out(attended.transpose(1, 2).reshape(x.sizes())));
  }
  std::int64_t num_heads;
  torch::nn::Linear qkv, out;
  torch::nn::LayerNorm norm;
  Block mlp;
};
TORCH_MODULE(Layer);

struct Shape {
  std::string name;
  enum Kind { mlp, normed_mlp, gpt, convolutions } kind;
  std::int64_t width;
  std::int64_t inner;  ///< number of heads of a gpt; unused by convolutions
  int depth;
  /// Samples per rank.
  std::int64_t batch;
  /// Samples per rank in bf16, whose products are ten to a hundred times slower
  /// on processors without instructions for it.
  std::int64_t bf16_batch;
  /// Tokens per sample, or height and width of an image.
  std::int64_t length = 0;
};

/// The models differ in whether weights or activations dominate, and in whether
/// units are few or many, large or small.
inline const std::vector<Shape>& shapes() {
  static const std::vector<Shape> all{
      {"mlp_deep", Shape::mlp, 512, 512, 12, 512, 16},
      {"mlp_wide", Shape::mlp, 1024, 2048, 2, 256, 16},
      {"mlp_batch", Shape::mlp, 64, 128, 6, 16384, 4096},
      {"mlp_few", Shape::mlp, 1024, 4096, 1, 128, 16},
      {"normed_deep", Shape::normed_mlp, 512, 1024, 6, 512, 16},
      {"normed_wide", Shape::normed_mlp, 1024, 2048, 2, 512, 16},
      {"normed_batch", Shape::normed_mlp, 64, 128, 6, 16384, 4096},
      {"gpt_small", Shape::gpt, 128, 4, 4, 32, 4, 64},
      {"gpt_long", Shape::gpt, 64, 2, 3, 16, 4, 256},
      {"gpt_wide", Shape::gpt, 256, 4, 3, 32, 2, 64},
      {"conv_small", Shape::convolutions, 8, 0, 6, 32, 16, 64},
      {"conv_wide", Shape::convolutions, 128, 0, 6, 16, 4, 8}};
  return all;
}

constexpr std::int64_t kVocabulary = 8192;

/// Any of the models: an embedding if it is a gpt, and layers.
struct NetImpl : torch::nn::Module {
  explicit NetImpl(const Shape& of) : shape(of) {
    register_module("layers", layers);
    for (int i = 0; i < shape.depth; ++i) add_layer();
    if (shape.kind == Shape::gpt) {
      embedding = register_module(
          "embedding", torch::nn::Embedding(kVocabulary, shape.width));
    }
  }
  torch::Tensor forward(torch::Tensor x) {
    if (embedding) x = embedding(x);
    for (const auto& layer : *layers) {
      if (shape.kind == Shape::gpt) {
        x = layer->as<Layer>()->forward(x);
      } else if (shape.kind == Shape::convolutions) {
        x = layer->as<torch::nn::Sequential>()->forward(x);
      } else {
        x = layer->as<Block>()->forward(x);
      }
    }
    return x;
  }

  Shape shape;
  torch::nn::ModuleList layers;
  torch::nn::Embedding embedding{nullptr};

 private:
  void add_layer() {
    const std::int64_t width = shape.width;
    switch (shape.kind) {
      case Shape::mlp:
      case Shape::normed_mlp:
        layers->push_back(
            Block(width, shape.inner, shape.kind == Shape::normed_mlp));
        break;
      case Shape::gpt:
        layers->push_back(Layer(width, shape.inner));
        break;
      case Shape::convolutions:
        layers->push_back(torch::nn::Sequential(
            torch::nn::Conv2d(
                torch::nn::Conv2dOptions(width, width, 3).padding(1)),
            torch::nn::BatchNorm2d(width),
            torch::nn::ReLU()));
        break;
    }
  }
};
TORCH_MODULE(Net);

inline torch::Tensor batch_of(const Shape& shape, std::int64_t num_samples) {
  switch (shape.kind) {
    case Shape::gpt:
      return torch::randint(0, kVocabulary, {num_samples, shape.length});
    case Shape::convolutions:
      return torch::randn(
          {num_samples, shape.width, shape.length, shape.length});
    default:
      return torch::randn({num_samples, shape.width});
  }
}

}  // namespace accelerate::benchmarks
