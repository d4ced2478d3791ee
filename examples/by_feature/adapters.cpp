// The plain loop with a frozen base whose weights are on disk, and small
// trained modules beside its layers (LoRA). Gradients pass through the base:
// its weights are fetched for the forward and again for the backward.
#include "task.h"

/// The base's layers, each with a low-rank product added to it. The base is not
/// registered, so that only the adapters are trained, averaged and saved.
struct AdaptedImpl : torch::nn::Module {
  explicit AdaptedImpl(Net frozen) : base(std::move(frozen)) {
    const torch::NoGradGuard no_grad;
    // At first the adapted net equals the base.
    up->weight.zero_();
    out->weight.zero_();
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const torch::Tensor hidden =
        torch::tanh(base->hidden(x) + up(torch::relu(down(x))));
    return base->out(hidden) + out(hidden);
  }
  Net base;
  torch::nn::Linear down = register_module("down", torch::nn::Linear(2, 16));
  torch::nn::Linear up = register_module(
      "up",
      torch::nn::Linear(torch::nn::LinearOptions(16, 32).bias(false)));
  torch::nn::Linear out = register_module("out", torch::nn::Linear(32, 1));
};
TORCH_MODULE(Adapted);

int main() {
  torch::manual_seed(0);
  accelerate::Accelerator accelerator;
  Net base;
  for (torch::Tensor& parameter : base->parameters())
    parameter.requires_grad_(false);
  // Each rank has its own folder; it could also be shared.
  auto offloaded = accelerate::disk_offload(
      base,
      "base_of_rank_" + std::to_string(accelerator.process_index()),
      // Room for one layer at a time.
      {.prefetch_memory = 400});
  Adapted net(base);
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
  std::int64_t num_trained = 0;
  for (const torch::Tensor& parameter : net->parameters())
    num_trained += parameter.numel();
  accelerator.print(
      std::to_string(num_trained) + " elements are trained, " +
      (accelerate::has_offloaded_params(*base->hidden) ? "the base is offloaded"
                                                       : "the base is here"));
  accelerator.print(
      "fetched more than once per step: " +
      std::string(offloaded.stats().num_fetches > 20 * 13 ? "yes" : "no"));
  expect(
      accelerate::has_offloaded_params(*base->hidden) &&
          offloaded.stats().num_fetches > 20 * 13,
      "the base must stay on disk, and be fetched for every pass");
  expect(
      num_trained == 593 && net->up->weight.count_nonzero().item<int>() > 0,
      "the adapters alone must be trained");
  report(accelerator, net);
  accelerator.end_training();
}
