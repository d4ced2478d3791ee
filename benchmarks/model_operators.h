// Ten models as programs write them with torch::nn; peers/model_operators.py
// has the same ones.
#pragma once

#include <torch/torch.h>

namespace accelerate::benchmarks {

namespace nn = torch::nn;
using torch::Tensor;

inline nn::Sequential mlp() {
  return nn::Sequential(
      nn::Linear(64, 128),
      nn::ReLU(),
      nn::Dropout(0.1),
      nn::Linear(128, 128),
      nn::ReLU(),
      nn::Linear(128, 10));
}

inline nn::Conv2d conv(std::int64_t from, std::int64_t to, std::int64_t size) {
  return nn::Conv2d(
      nn::Conv2dOptions(from, to, size).padding(size / 2).bias(false));
}

inline nn::Sequential cnn() {
  return nn::Sequential(
      conv(3, 16, 3),
      nn::BatchNorm2d(16),
      nn::ReLU(),
      nn::MaxPool2d(2),
      conv(16, 32, 3),
      nn::BatchNorm2d(32),
      nn::ReLU(),
      nn::MaxPool2d(2),
      nn::Flatten(),
      nn::Linear(32 * 8 * 8, 10));
}

struct ResidualImpl : nn::Module {
  explicit ResidualImpl(std::int64_t width) {
    body = register_module(
        "body",
        nn::Sequential(
            conv(width, width, 3),
            nn::BatchNorm2d(width),
            nn::ReLU(),
            conv(width, width, 3),
            nn::BatchNorm2d(width)));
  }
  Tensor forward(const Tensor& x) { return torch::relu(x + body->forward(x)); }
  nn::Sequential body = nullptr;
};
TORCH_MODULE(Residual);

inline nn::Sequential resnet() {
  return nn::Sequential(
      conv(3, 16, 3),
      nn::BatchNorm2d(16),
      nn::ReLU(),
      Residual(16),
      Residual(16),
      Residual(16),
      nn::AdaptiveAvgPool2d(1),
      nn::Flatten(),
      nn::Linear(16, 10));
}

struct LstmImpl : nn::Module {
  LstmImpl() {
    words = register_module("words", nn::Embedding(100, 32));
    lstm = register_module(
        "lstm",
        nn::LSTM(nn::LSTMOptions(32, 64).num_layers(2).batch_first(true)));
    head = register_module("head", nn::Linear(64, 100));
  }
  Tensor forward(const Tensor& tokens) {
    return head(std::get<0>(lstm(words(tokens))));
  }
  nn::Embedding words = nullptr;
  nn::LSTM lstm = nullptr;
  nn::Linear head = nullptr;
};
TORCH_MODULE(Lstm);

struct EncoderImpl : nn::Module {
  EncoderImpl() {
    nn::TransformerEncoderLayerOptions options(64, 4);
    options.dim_feedforward(128).dropout(0.1).activation(torch::kGELU);
    encoder = register_module(
        "encoder",
        nn::TransformerEncoder(nn::TransformerEncoderOptions(options, 2)));
    head = register_module("head", nn::Linear(64, 10));
  }
  Tensor forward(const Tensor& x) { return head(encoder(x).mean(0)); }
  nn::TransformerEncoder encoder = nullptr;
  nn::Linear head = nullptr;
};
TORCH_MODULE(Encoder);

inline nn::Sequential feed_forward(std::int64_t width) {
  return nn::Sequential(
      nn::Linear(width, 4 * width), nn::GELU(), nn::Linear(4 * width, width));
}

inline nn::LayerNorm layer_norm(std::int64_t width) {
  return nn::LayerNorm(nn::LayerNormOptions({width}));
}

// A block of a GPT.
struct BlockImpl : nn::Module {
  explicit BlockImpl(std::int64_t width) {
    norm1 = register_module("norm1", layer_norm(width));
    norm2 = register_module("norm2", layer_norm(width));
    qkv = register_module("qkv", nn::Linear(width, 3 * width));
    out = register_module("out", nn::Linear(width, width));
    mlp = register_module("mlp", feed_forward(width));
  }
  Tensor forward(Tensor x) {
    const auto heads = qkv(norm1(x)).chunk(3, -1);
    const auto split = [](const Tensor& part) {
      return part.unflatten(-1, {4, -1}).transpose(1, 2);
    };
    const Tensor mixed = at::scaled_dot_product_attention(
        split(heads[0]), split(heads[1]), split(heads[2]), {}, 0.0, true);
    x = x + out(mixed.transpose(1, 2).flatten(-2));
    return x + mlp->forward(norm2(x));
  }
  nn::LayerNorm norm1 = nullptr, norm2 = nullptr;
  nn::Linear qkv = nullptr, out = nullptr;
  nn::Sequential mlp = nullptr;
};
TORCH_MODULE(Block);

struct TinyGptImpl : nn::Module {
  TinyGptImpl() {
    tokens = register_module("tokens", nn::Embedding(100, 64));
    positions = register_module("positions", nn::Embedding(16, 64));
    blocks = register_module("blocks", nn::Sequential(Block(64), Block(64)));
    norm = register_module("norm", layer_norm(64));
  }
  Tensor forward(const Tensor& ids) {
    const Tensor x = tokens(ids) + positions(torch::arange(ids.size(1)));
    return norm(blocks->forward(x)).matmul(tokens->weight.t());
  }
  nn::Embedding tokens = nullptr, positions = nullptr;
  nn::Sequential blocks = nullptr;
  nn::LayerNorm norm = nullptr;
};
TORCH_MODULE(TinyGpt);

// A block of a vision transformer, with LibTorch's attention.
struct VitBlockImpl : nn::Module {
  VitBlockImpl() {
    norm1 = register_module("norm1", layer_norm(64));
    norm2 = register_module("norm2", layer_norm(64));
    attention = register_module("attention", nn::MultiheadAttention(64, 4));
    mlp = register_module("mlp", feed_forward(64));
  }
  Tensor forward(Tensor x) {
    const Tensor y = norm1(x);
    x = x +
        std::get<0>(attention->forward(y, y, y, {}, /*need_weights=*/false));
    return x + mlp->forward(norm2(x));
  }
  nn::LayerNorm norm1 = nullptr, norm2 = nullptr;
  nn::MultiheadAttention attention = nullptr;
  nn::Sequential mlp = nullptr;
};
TORCH_MODULE(VitBlock);

struct VitImpl : nn::Module {
  VitImpl() {
    patches = register_module(
        "patches", nn::Conv2d(nn::Conv2dOptions(3, 64, 8).stride(8)));
    positions = register_parameter("positions", torch::zeros({16, 1, 64}));
    blocks = register_module("blocks", nn::Sequential(VitBlock(), VitBlock()));
    head = register_module("head", nn::Linear(64, 10));
  }
  Tensor forward(const Tensor& x) {
    const Tensor rows = patches(x).flatten(2).permute({2, 0, 1}) + positions;
    return head(blocks->forward(rows).mean(0));
  }
  nn::Conv2d patches = nullptr;
  Tensor positions;
  nn::Sequential blocks = nullptr;
  nn::Linear head = nullptr;
};
TORCH_MODULE(Vit);

inline nn::Sequential convolved(std::int64_t from, std::int64_t to) {
  return nn::Sequential(
      conv(from, to, 3),
      nn::GroupNorm(nn::GroupNormOptions(4, to)),
      nn::SiLU());
}

struct UnetImpl : nn::Module {
  UnetImpl() {
    first = register_module("first", convolved(3, 16));
    second = register_module("second", convolved(16, 32));
    up = register_module(
        "up",
        nn::ConvTranspose2d(nn::ConvTranspose2dOptions(32, 16, 2).stride(2)));
    last = register_module("last", convolved(32, 16));
    head = register_module("head", nn::Conv2d(nn::Conv2dOptions(16, 3, 1)));
  }
  Tensor forward(const Tensor& x) {
    const Tensor wide = first->forward(x);
    const Tensor deep = second->forward(torch::max_pool2d(wide, 2));
    return head(last->forward(torch::cat({up(deep), wide}, 1)));
  }
  nn::Sequential first = nullptr, second = nullptr, last = nullptr;
  nn::ConvTranspose2d up = nullptr;
  nn::Conv2d head = nullptr;
};
TORCH_MODULE(Unet);

// Each row goes to one of four experts.
struct MoeImpl : nn::Module {
  MoeImpl() {
    router = register_module("router", nn::Linear(64, 4));
    experts = register_module("experts", nn::ModuleList());
    for (int i = 0; i < 4; ++i) experts->push_back(feed_forward(64));
    head = register_module("head", nn::Linear(64, 10));
  }
  Tensor forward(const Tensor& x) {
    const auto [weights, chosen] = torch::softmax(router(x), -1).max(-1);
    Tensor mixed = torch::zeros_like(x);
    for (std::size_t i = 0; i < experts->size(); ++i) {
      const Tensor rows =
          torch::nonzero(chosen == static_cast<std::int64_t>(i)).flatten();
      const Tensor y = experts->ptr<nn::SequentialImpl>(i)->forward(
                           x.index_select(0, rows)) *
          weights.index_select(0, rows).unsqueeze(-1);
      mixed = mixed.index_add(0, rows, y);
    }
    return head(x + mixed);
  }
  nn::Linear router = nullptr, head = nullptr;
  nn::ModuleList experts = nullptr;
};
TORCH_MODULE(Moe);

// Sums of embeddings, and their products with each other.
struct RecommenderImpl : nn::Module {
  RecommenderImpl() {
    tables = register_module("tables", nn::ModuleList());
    for (int i = 0; i < 4; ++i) {
      tables->push_back(
          nn::EmbeddingBag(nn::EmbeddingBagOptions(200, 16).mode(torch::kSum)));
    }
    top = register_module(
        "top",
        nn::Sequential(nn::Linear(16, 32), nn::ReLU(), nn::Linear(32, 10)));
  }
  Tensor forward(const Tensor& ids) {
    std::vector<Tensor> found;
    for (std::size_t i = 0; i < tables->size(); ++i)
      found.push_back(tables->ptr<nn::EmbeddingBagImpl>(i)->forward(ids));
    const Tensor rows = torch::stack(found, 1);
    return top->forward(torch::bmm(rows, rows.transpose(1, 2)).flatten(1));
  }
  nn::ModuleList tables = nullptr;
  nn::Sequential top = nullptr;
};
TORCH_MODULE(Recommender);

}  // namespace accelerate::benchmarks
