// The plain loop with a model in bf16 and fp32 master weights on which the
// optimizer steps, so that small updates are not rounded away.
#include <accelerate/optimizers.h>

#include "task.h"

int main() {
  torch::manual_seed(0);
  accelerate::Accelerator accelerator({.master_weights = true});
  Net net;
  net->to(torch::kBFloat16);
  accelerate::optim::Adam adam(net->parameters(), 1e-2);
  auto [model, optimizer, loader] = accelerator.prepare(
      net,
      adam,
      accelerate::DataLoader(
          training_data(), {.batch_size = 20, .shuffle = true}));
  for (int epoch = 0; epoch < 20; ++epoch) {
    for (auto& [points, values] : loader) {
      optimizer.zero_grad();
      const torch::Tensor predicted =
          model(points.to(torch::kBFloat16)).to(torch::kFloat);
      const torch::Tensor loss = torch::mse_loss(predicted, values);
      accelerator.backward(loss);
      optimizer.step();
    }
  }
  const torch::Tensor& stepped_on =
      optimizer.param_groups().front().params().front();
  accelerator.print(
      std::string("the model computes in ") +
      c10::toString(net->hidden->weight.scalar_type()) +
      ", the optimizer steps on " + c10::toString(stepped_on.scalar_type()));
  expect(
      net->hidden->weight.scalar_type() == torch::kBFloat16 &&
          stepped_on.scalar_type() == torch::kFloat,
      "the model must be bf16, and its master weights fp32");
  report(accelerator, net);
  accelerator.end_training();
}
