// The plain loop in bf16: forward under autocast, weights and loss in fp32.
// With Precision::fp16 losses are scaled as well, and nothing else changes.
#include "task.h"

int main() {
  torch::manual_seed(0);
  accelerate::Accelerator accelerator(
      {.mixed_precision = accelerate::Precision::bf16});
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
      const torch::Tensor predicted =
          model(points);  // computed in bf16, returned in fp32
      const torch::Tensor loss = torch::mse_loss(predicted, values);
      accelerator.backward(loss);
      optimizer.step();
    }
  }
  model.call([&](NetImpl& inside) {
    const torch::Tensor point = torch::zeros({1, 2});
    expect(
        inside.out->weight.scalar_type() == torch::kFloat &&
            inside.forward(point).scalar_type() == torch::kBFloat16,
        "weights must be fp32, and products bf16");
    accelerator.print(
        std::string("weights in ") +
        c10::toString(inside.out->weight.scalar_type()) + ", computed in " +
        c10::toString(inside.forward(point).scalar_type()));
  });
  report(accelerator, net);
  accelerator.end_training();
}
