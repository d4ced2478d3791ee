// QLoRA (Dettmers et al., 2023): trains low-rank adapters beside the weights of
// a language model that are kept in 4 or 8 bits.
//
// Once, a base, here a small model of bytes that learns some texts:
//
//   build/bin/adapters_on_quantized --pretrain docs/guides/*.md --base base
//
// Then adapters for another kind of text, on any number of processes:
//
//   accelerate-cpp launch --num_processes 2 build/bin/adapters_on_quantized
//       --base base --text include/accelerate/m*.h
//
// prints how many bytes the base has now, how many elements are trained, and
// the loss on the last texts, which are not trained on: of the base, with
// the adapter, and with the adapter as its file has it, on a base that was
// loaded again. The file is PEFT's, in the directory --output.
#include <algorithm>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <iostream>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <torch/torch.h>
#include <CLI/CLI.hpp>

#include <accelerate/accelerate.h>
#include <accelerate/adapters.h>
#include <accelerate/datasets.h>

namespace {

namespace fs = std::filesystem;
using torch::Tensor;

constexpr std::int64_t kWidth = 64, kHeads = 4, kLength = 64, kLayers = 2;

struct Flags {
  std::vector<std::string> pretrain;
  fs::path base = "base";
  std::vector<std::string> text;
  std::string type = "nf4";
  std::int64_t rank = 8;
  int steps = 300;
  fs::path output = "adapter";
};

struct BlockImpl : torch::nn::Module {
  Tensor forward(const Tensor& x_BTW) {
    const auto split = [](const Tensor& x) {
      return x.unflatten(2, {kHeads, kWidth / kHeads}).transpose(1, 2);
    };
    const Tensor x = norm1(x_BTW);
    const Tensor seen = torch::scaled_dot_product_attention(
        split(q_proj(x)), split(k_proj(x)), split(v_proj(x)), {}, 0, true);
    const Tensor y = x_BTW + o_proj(seen.transpose(1, 2).flatten(2));
    return y + down_proj(torch::gelu(up_proj(norm2(y))));
  }
  torch::nn::Linear
  linear(const std::string& name, std::int64_t in, std::int64_t out) {
    return register_module(name, torch::nn::Linear(in, out));
  }
  torch::nn::LayerNorm norm(const std::string& name) {
    return register_module(
        name, torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})));
  }
  torch::nn::LayerNorm norm1 = norm("norm1"), norm2 = norm("norm2");
  torch::nn::Linear q_proj = linear("q_proj", kWidth, kWidth);
  torch::nn::Linear k_proj = linear("k_proj", kWidth, kWidth);
  torch::nn::Linear v_proj = linear("v_proj", kWidth, kWidth);
  torch::nn::Linear o_proj = linear("o_proj", kWidth, kWidth);
  torch::nn::Linear up_proj = linear("up_proj", kWidth, 4 * kWidth);
  torch::nn::Linear down_proj = linear("down_proj", 4 * kWidth, kWidth);
};
TORCH_MODULE(Block);

/// Bytes [B, T] give logits [B, T, 256] of the next ones.
struct DecoderImpl : torch::nn::Module {
  DecoderImpl() {
    for (std::int64_t i = 0; i < kLayers; ++i) layers->push_back(Block());
    torch::nn::init::normal_(tokens->weight, 0, 0.1);
    torch::nn::init::normal_(positions->weight, 0, 0.1);
  }
  Tensor forward(const Tensor& bytes_BT) {
    Tensor x = tokens(bytes_BT) + positions->weight;
    for (const auto& layer : *layers) x = layer->as<Block>()->forward(x);
    return lm_head(norm(x));
  }
  torch::nn::Embedding tokens =
      register_module("tokens", torch::nn::Embedding(256, kWidth));
  torch::nn::Embedding positions =
      register_module("positions", torch::nn::Embedding(kLength, kWidth));
  torch::nn::ModuleList layers =
      register_module("layers", torch::nn::ModuleList());
  torch::nn::LayerNorm norm = register_module(
      "norm",
      torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})));
  torch::nn::Linear lm_head =
      register_module("lm_head", torch::nn::Linear(kWidth, 256));
};
TORCH_MODULE(Decoder);

/// The last tenth of the texts is held out.
struct Part {
  accelerate::TokenDataset text;
  bool is_held_out;

  [[nodiscard]] std::int64_t size() const {
    const std::int64_t held_out = std::max<std::int64_t>(1, text.size() / 10);
    return is_held_out ? held_out : text.size() - held_out;
  }
  [[nodiscard]] auto get_batch(std::span<const std::int64_t> indices) const {
    std::vector<std::int64_t> places(indices.begin(), indices.end());
    if (is_held_out)
      for (std::int64_t& place : places) place += text.size() - size();
    return text.get_batch(places);
  }
};

auto loader_of(const std::vector<std::string>& files, bool is_held_out) {
  const accelerate::TokenDataset tokens(
      files, {.dtype = torch::kByte, .block_size = kLength});
  return accelerate::DataLoader(
      Part{tokens, is_held_out}, {.batch_size = 8, .shuffle = !is_held_out});
}

Tensor loss_of(const Tensor& logits, const Tensor& next) {
  return torch::nn::functional::cross_entropy(
      logits.flatten(0, 1), next.flatten());
}

/// The mean loss on the held-out bytes, over all ranks.
double evaluate(
    const accelerate::Accelerator& accelerator,
    const accelerate::Model<DecoderImpl>& model,
    const std::vector<std::string>& text) {
  const torch::NoGradGuard no_grad;
  accelerate::Mean loss(accelerator);
  auto loader = accelerator.prepare(loader_of(text, true));
  for (auto& [bytes, next] : loader) {
    const double size = static_cast<double>(bytes.size(0));
    loss.update(loss_of(model(bytes), next).item<double>(), size);
  }
  return loss.compute();
}

/// Trains whatever is not frozen. Returns the loss before and after.
std::pair<double, double> train(
    const accelerate::Accelerator& accelerator,
    const accelerate::Model<DecoderImpl>& model,
    torch::optim::AdamW& adamw,
    const std::vector<std::string>& text,
    int steps) {
  const double before = evaluate(accelerator, model, text);
  auto [optimizer, loader] = accelerator.prepare(adamw, loader_of(text, false));
  for (int step = 0; step < steps;) {
    for (auto& [bytes, next] : loader) {
      accelerator.backward(loss_of(model(bytes), next));
      optimizer.step();
      optimizer.zero_grad();
      if (++step == steps) break;
    }
  }
  return {before, evaluate(accelerator, model, text)};
}

void pretrain(const Flags& flags) {
  const accelerate::Accelerator accelerator;
  torch::manual_seed(1);
  Decoder net;
  torch::optim::AdamW adamw(net->parameters(), 3e-3);
  const auto model = accelerator.prepare(net);
  const auto [before, after] =
      train(accelerator, model, adamw, flags.pretrain, flags.steps);
  accelerator.save_model(model, flags.base);
  accelerator.print("loss {} before, {} after", before, after);
  accelerator.end_training();
}

void adapt(const Flags& flags) {
  const accelerate::Accelerator accelerator;
  torch::manual_seed(1);
  accelerate::QuantizationOptions config;
  config.load_in_8bit = flags.type == "int8";
  config.load_in_4bit = !config.load_in_8bit;
  if (config.load_in_4bit) config.bnb_4bit_quant_type = flags.type;
  config.torch_dtype = "fp32";
  const auto load_base = [&](Decoder& net) {
    // Reads and quantises one weight after the other.
    net = accelerate::init_empty_weights([] { return Decoder(); });
    return accelerate::load_and_quantize_model(
        *net, config, {.weights_location = flags.base});
  };

  Decoder net{nullptr};
  const accelerate::QuantizedModel base = load_base(net);
  const std::int64_t num_bytes = base.get_memory_footprint();
  accelerate::add_adapters(
      net,
      {.rank = flags.rank,
       .alpha = 2.0 * static_cast<double>(flags.rank),
       .target_modules = "all-linear"});
  std::vector<Tensor> trained;
  std::int64_t num_elements = 0, num_trained = 0;
  for (const Tensor& parameter : net->parameters()) {
    num_elements += parameter.numel();
    if (!parameter.requires_grad()) continue;
    trained.push_back(parameter);
    num_trained += parameter.numel();
  }
  accelerator.print(
      "{} bytes in {}; {} of {} elements are trained",
      num_bytes,
      flags.type,
      num_trained,
      num_elements);
  torch::optim::AdamW adamw(trained, 5e-3);
  const auto model = accelerator.prepare(net);
  const auto [before, after] =
      train(accelerator, model, adamw, flags.text, flags.steps);
  const auto weights = accelerator.get_state_dict(model);
  if (accelerator.is_main_process())
    accelerate::save_adapters(net, flags.output, "default", weights);
  accelerator.wait_for_everyone();
  accelerator.free_memory();

  // As another program uses the adapter.
  Decoder other{nullptr};
  const accelerate::QuantizedModel same_base = load_base(other);
  accelerate::load_adapters(other, flags.output);
  const auto loaded = accelerator.prepare(other);
  accelerator.print(
      "loss of the base {}, with the adapter {}, loaded again {}",
      before,
      after,
      evaluate(accelerator, loaded, flags.text));
  accelerator.end_training();
}

}  // namespace

int main(int argc, char** argv) {
  Flags flags;
  CLI::App app("Trains adapters beside a quantised language model.");
  app.option_defaults()->always_capture_default();
  app.add_option("--pretrain", flags.pretrain, "files: makes the base of them");
  app.add_option("--base", flags.base, "directory of the base's weights");
  app.add_option("--text", flags.text, "files that the adapters learn");
  app.add_option("--type", flags.type)
      ->check(CLI::IsMember({"nf4", "fp4", "int8"}));
  app.add_option("--rank", flags.rank, "of the adapters");
  app.add_option("--steps", flags.steps);
  app.add_option("--output", flags.output, "directory of the adapter");
  CLI11_PARSE(app, argc, argv);
  try {
    flags.pretrain.empty() ? adapt(flags) : pretrain(flags);
  } catch (const std::exception& error) {
    std::cerr << "adapters_on_quantized: " << error.what() << '\n';
    return 1;
  }
  return 0;
}
