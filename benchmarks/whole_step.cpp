// Whole training steps (forward, loss, backward, clipping, AdamW) of four
// models: the same modules, loop and torch::optim::AdamW prepared, compared
// with LibTorch by hand, and fully sharded over one rank, compared with
// unsharded. Arguments: models (mlp, encoder, gpt, cnn), precisions (no, bf16)
// and numbers of threads to measure, all without any; "unsharded" leaves out
// the rest.
#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include <ATen/autocast_mode.h>
#include <torch/torch.h>

#include <accelerate/accelerate.h>

#include "interleave.h"
#include "model.h"

namespace {

using namespace accelerate::benchmarks;
using accelerate::Precision;
using torch::Tensor;
namespace nn = torch::nn;

struct MlpImpl : nn::Module {
  MlpImpl() {
    layers = register_module(
        "layers",
        nn::Sequential(
            nn::Linear(256, 1024),
            nn::ReLU(),
            nn::Linear(1024, 1024),
            nn::ReLU(),
            nn::Linear(1024, 10)));
  }
  Tensor forward(const Tensor& x) { return layers->forward(x); }
  nn::Sequential layers = nullptr;
};
TORCH_MODULE(Mlp);

// 4 of LibTorch's encoder layers and a classifier of the mean.
struct EncoderImpl : nn::Module {
  EncoderImpl() {
    nn::TransformerEncoderLayerOptions options(256, 4);
    options.dim_feedforward(1024).dropout(0).activation(torch::kGELU);
    encoder = register_module(
        "encoder",
        nn::TransformerEncoder(nn::TransformerEncoderOptions(options, 4)));
    head = register_module("head", nn::Linear(256, 10));
  }
  Tensor forward(const Tensor& x) { return head(encoder(x).mean(0)); }
  nn::TransformerEncoder encoder = nullptr;
  nn::Linear head = nullptr;
};
TORCH_MODULE(Encoder);

// A convolution and its normalisation.
struct ConvolutionImpl : nn::Module {
  ConvolutionImpl(
      std::int64_t from,
      std::int64_t to,
      std::int64_t size,
      std::int64_t stride) {
    conv = register_module(
        "conv",
        nn::Conv2d(nn::Conv2dOptions(from, to, size)
                       .stride(stride)
                       .padding(size / 2)
                       .bias(false)));
    norm = register_module("norm", nn::BatchNorm2d(to));
  }
  Tensor forward(const Tensor& x) { return norm(conv(x)); }
  nn::Conv2d conv = nullptr;
  nn::BatchNorm2d norm = nullptr;
};
TORCH_MODULE(Convolution);

struct ResidualImpl : nn::Module {
  ResidualImpl(std::int64_t from, std::int64_t to, std::int64_t stride) {
    first = register_module("first", Convolution(from, to, 3, stride));
    second = register_module("second", Convolution(to, to, 3, 1));
    shortcut = register_module("shortcut", Convolution(from, to, 1, stride));
  }
  Tensor forward(const Tensor& x) {
    return torch::relu(second(torch::relu(first(x))) + shortcut(x));
  }
  Convolution first = nullptr, second = nullptr, shortcut = nullptr;
};
TORCH_MODULE(Residual);

// A small residual net for images of 32 x 32.
struct CnnImpl : nn::Module {
  CnnImpl() {
    layers = register_module(
        "layers",
        nn::Sequential(
            Convolution(3, 32, 3, 1),
            nn::ReLU(),
            Residual(32, 32, 1),
            Residual(32, 64, 2),
            Residual(64, 128, 2),
            nn::AdaptiveAvgPool2d(1),
            nn::Flatten(),
            nn::Linear(128, 10)));
  }
  Tensor forward(const Tensor& x) { return layers->forward(x); }
  nn::Sequential layers = nullptr;
};
TORCH_MODULE(Cnn);

GptOptions gpt_options() {
  GptOptions options;
  options.block_size = 128;
  options.num_layers = 4;
  options.num_heads = 4;
  options.width = 256;
  return options;
}

Tensor loss_of(const Tensor& logits, const Tensor& targets) {
  const Tensor rows = logits.dim() == 3 ? logits.flatten(0, 1) : logits;
  return torch::cross_entropy_loss(rows.to(torch::kFloat), targets.flatten());
}

constexpr double kMaxNorm = 1;

// As a program without this library computes in bf16.
class HandAutocast {
 public:
  explicit HandAutocast(bool is_on) : is_on_(is_on) {
    if (!is_on_) return;
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
    at::autocast::increment_nesting();
  }
  ~HandAutocast() {
    if (!is_on_) return;
    at::autocast::decrement_nesting();
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
  }
  HandAutocast(const HandAutocast&) = delete;
  HandAutocast& operator=(const HandAutocast&) = delete;

 private:
  bool is_on_;
};

template <class Net>
std::function<void()>
step_by_hand(Net net, Tensor x, Tensor y, Precision precision) {
  const auto adamw = std::make_shared<torch::optim::AdamW>(
      net->parameters(), torch::optim::AdamWOptions(3e-4));
  return [=]() mutable {
    Tensor logits;
    {
      const HandAutocast autocast(precision == Precision::bf16);
      logits = net->forward(x);
    }
    loss_of(logits, y).backward();
    nn::utils::clip_grad_norm_(net->parameters(), kMaxNorm);
    adamw->step();
    adamw->zero_grad();
  };
}

template <class Net>
std::function<void()> step_prepared(
    Net net,
    Tensor x,
    Tensor y,
    Precision precision,
    bool is_sharded) {
  accelerate::AcceleratorOptions options;
  options.cpu = true;
  options.mixed_precision = precision;
  if (is_sharded) options.parallel.fully_sharded.emplace();
  const auto accelerator = std::make_shared<accelerate::Accelerator>(options);
  const auto adamw = std::make_shared<torch::optim::AdamW>(
      net->parameters(), torch::optim::AdamWOptions(3e-4));
  const auto [model, optimizer] = accelerator->prepare(net, adamw);
  return [=, model = model, optimizer = optimizer] {
    accelerator->backward(loss_of(model(x), y));
    accelerator->clip_grad_norm_(model, kMaxNorm);
    optimizer.step();
    optimizer.zero_grad();
  };
}

template <class MakeNet>
void compare(
    const std::string& name,
    const MakeNet& make_net,
    const Tensor& x,
    const Tensor& y,
    Precision precision,
    int threads,
    bool has_shards) {
  const auto make = [&] {
    torch::manual_seed(1);
    return make_net();
  };
  const std::string suffix =
      std::string(precision == Precision::bf16 ? "_bf16" : "_fp32") +
      (threads == 1 ? "_one_thread" : "_two_threads");
  const auto prepared = step_prepared(make(), x, y, precision, false);
  report_interleaved(
      "whole_step",
      name + suffix + "_us",
      interleave(15, 1, prepared, step_by_hand(make(), x, y, precision)));
  if (!has_shards) return;
  report_interleaved(
      "whole_step",
      name + "_sharded" + suffix + "_us",
      interleave(
          15, 1, step_prepared(make(), x, y, precision, true), prepared));
}

bool is_chosen(
    const std::vector<std::string>& chosen,
    const std::vector<std::string>& family,
    const std::string& name) {
  const auto is_in_family = [&](const std::string& each) {
    return std::find(family.begin(), family.end(), each) != family.end();
  };
  return std::none_of(chosen.begin(), chosen.end(), is_in_family) ||
      std::find(chosen.begin(), chosen.end(), name) != chosen.end();
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> chosen(argv + 1, argv + argc);
  const bool has_shards =
      std::find(chosen.begin(), chosen.end(), "unsharded") == chosen.end();
  const std::vector<std::string> models{"mlp", "encoder", "gpt", "cnn"};
  torch::manual_seed(2);
  const auto classes = [](at::IntArrayRef sizes) {
    return torch::randint(10, sizes, torch::kLong);
  };
  const auto measure = [&](const std::string& name,
                           const auto& make_net,
                           const Tensor& x,
                           const Tensor& y) {
    if (!is_chosen(chosen, models, name)) return;
    for (const int threads : {1, 2}) {
      if (!is_chosen(chosen, {"1", "2"}, std::to_string(threads))) continue;
      torch::set_num_threads(threads);
      for (const Precision precision : {Precision::no, Precision::bf16}) {
        const bool is_low = precision == Precision::bf16;
        if (is_chosen(chosen, {"no", "bf16"}, is_low ? "bf16" : "no"))
          compare(name, make_net, x, y, precision, threads, has_shards);
      }
    }
  };
  measure(
      "mlp", [] { return Mlp(); }, torch::randn({128, 256}), classes({128}));
  measure(
      "encoder",
      [] { return Encoder(); },
      torch::randn({128, 8, 256}),
      classes({8}));
  measure(
      "gpt",
      [] { return Gpt(gpt_options()); },
      torch::randint(256, {8, 128}, torch::kLong),
      torch::randint(256, {8, 128}, torch::kLong));
  measure(
      "cnn",
      [] { return Cnn(); },
      torch::randn({64, 3, 32, 32}),
      classes({64}));
  return 0;
}
