// The plain loop with linear layers in float8, with each recipe. A device that
// can multiply float8 does so; otherwise the same rounding is emulated.
#include <accelerate/fp8.h>

#include "task.h"

namespace {

struct DeepNetImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) {
    return out(torch::tanh(middle(torch::tanh(hidden(x)))));
  }
  torch::nn::Linear hidden =
      register_module("hidden", torch::nn::Linear(2, 32));
  torch::nn::Linear middle =
      register_module("middle", torch::nn::Linear(32, 32));
  torch::nn::Linear out = register_module("out", torch::nn::Linear(32, 1));
};
TORCH_MODULE(DeepNet);

void train(const std::string& name, const accelerate::FP8Recipe& recipe) {
  torch::manual_seed(0);
  accelerate::Accelerator accelerator(
      {.mixed_precision = accelerate::Precision::fp8, .fp8_recipe = recipe});
  DeepNet net;
  accelerator.print("by " + name);
  accelerator.print(accelerate::explain_float8_layers(
      accelerate::choose_float8_layers(*net, recipe)));
  torch::optim::Adam adam(net->parameters(), 1e-2);
  auto [model, optimizer, loader] = accelerator.prepare(
      net,
      adam,
      accelerate::DataLoader(
          training_data(), {.batch_size = 20, .shuffle = true}));
  for (int epoch = 0; epoch < 20; ++epoch) {
    for (auto& [points, values] : loader) {
      optimizer.zero_grad();
      const torch::Tensor loss = torch::mse_loss(model(points), values);
      accelerator.backward(loss);
      optimizer.step();
    }
  }
  {
    const torch::NoGradGuard no_grad;
    const torch::Tensor points = torch::rand({32, 2});
    // The module's own forward, outside the handle, computes in fp32.
    const torch::Tensor error = (model(points) - net->forward(points)).abs();
    expect(
        error.max().item<float>() > 0 && error.max().item<float>() < 0.5,
        "products must be rounded to float8, and only a little");
  }
  report(accelerator, net);
  accelerator.end_training();
}

}  // namespace

int main() {
  using accelerate::AORecipeKwargs;
  using accelerate::Float8LinearConfig;
  using accelerate::TERecipeKwargs;
  train("tensorwise", AORecipeKwargs());
  for (const char* name : {"rowwise", "rowwise_with_gw_hp"})
    train(name, AORecipeKwargs{Float8LinearConfig::from_recipe_name(name)});
  train(
      "delayed",
      TERecipeKwargs{.amax_history_len = 16, .amax_compute_algo = "max"});
  train("mxfp8", TERecipeKwargs{.use_mxfp8_block_scaling = true});
  // Gradients in 8 bits, and Adam's moments in 8 and 16.
  for (const char* level : {"O1", "O2"})
    train(std::string("msamp_") + level, accelerate::MSAMPRecipeKwargs{level});
}
