// The plain loop with gradients that travel between the ranks as bf16, half the
// bytes. CommHook::power_sgd sends even less.
#include "task.h"

int main() {
  torch::manual_seed(0);
  accelerate::Accelerator accelerator(
      {.parallel = {
           .replicate_options = {.comm_hook = accelerate::CommHook::bf16}}});
  Net net;
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
  // Each rank has the received values: bf16 in fp32 gradients.
  bool is_rounded = true;
  for (const torch::Tensor& parameter : net->parameters()) {
    const torch::Tensor& gradient = parameter.grad();
    is_rounded &=
        gradient.equal(gradient.to(torch::kBFloat16).to(torch::kFloat));
  }
  accelerator.print(
      std::string("gradients have the precision of ") +
      (is_rounded ? "bf16" : "fp32"));
  expect(
      is_rounded == (accelerator.num_processes() > 1),
      "gradients must be rounded to bf16 if they travel, and not otherwise");
  report(accelerator, net);
  accelerator.end_training();
}
