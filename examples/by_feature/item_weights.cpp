// Accumulation where micro-batches hold different numbers of items (tokens that
// are not masked, say): given the number, backward() computes the gradient of
// the mean over all items of the window on all ranks. However samples are
// divided into batches, windows and ranks, the result is the same.
//
// usage: item_weights [BATCH_SIZE [GRADIENT_ACCUMULATION_STEPS]]
#include "task.h"

// A weight of 1 for each point that counts: those near the border do not.
torch::Tensor mask_of(const torch::Tensor& points) {
  return (points.abs().amax(1, /*keepdim=*/true) < 1.9).to(torch::kFloat);
}

// Whether the net's gradients are those of the mean over all items of these
// batches and those of the other ranks.
bool has_gradients_of(
    const accelerate::Accelerator& accelerator,
    Net& net,
    const std::vector<torch::Tensor>& points_of_window,
    const std::vector<torch::Tensor>& values_of_window) {
  const torch::Tensor points = accelerator.gather(torch::cat(points_of_window));
  const torch::Tensor values = accelerator.gather(torch::cat(values_of_window));
  const torch::Tensor mask = mask_of(points);
  const torch::Tensor errors = torch::square(net->forward(points) - values);
  const auto wanted = torch::autograd::grad(
      {(errors * mask).sum() / mask.sum()}, net->parameters());
  bool are_equal = true;
  for (std::size_t i = 0; i < wanted.size(); ++i)
    are_equal &= wanted[i].allclose(net->parameters()[i].grad(), 1e-3, 1e-5);
  return are_equal;
}

int main(int argc, char** argv) {
  const int batch_size = argc > 1 ? std::atoi(argv[1]) : 25;
  const int window = argc > 2 ? std::atoi(argv[2]) : 2;
  torch::manual_seed(0);
  accelerate::Accelerator accelerator({.gradient_accumulation_steps = window});
  Net net;
  torch::optim::Adam adam(net->parameters(), 2e-2);
  auto [model, optimizer, loader] = accelerator.prepare(
      net,
      adam,
      accelerate::DataLoader(
          training_data(), {.batch_size = batch_size, .shuffle = true}));
  std::vector<torch::Tensor> points_of_window, values_of_window;
  for (int epoch = 0; epoch < 40; ++epoch) {
    for (auto& [points, values] : loader) {
      auto micro_step = accelerator.accumulate(model);
      optimizer.zero_grad();
      const torch::Tensor mask = mask_of(points);
      const auto num_items = mask.sum().item<std::int64_t>();
      const torch::Tensor errors = torch::square(model(points) - values) * mask;
      const torch::Tensor loss =
          errors.sum() / std::max<std::int64_t>(num_items, 1);
      accelerator.backward(loss, {.num_items = num_items});
      points_of_window.push_back(points);
      values_of_window.push_back(values);
      if (accelerator.sync_gradients()) {
        expect(
            has_gradients_of(
                accelerator, net, points_of_window, values_of_window),
            "gradients must be those of the mean over the window's items");
        points_of_window.clear();
        values_of_window.clear();
      }
      optimizer.step();
    }
  }
  report(accelerator, net);
  accelerator.end_training();
}
