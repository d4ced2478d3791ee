// A bf16 step: forward under autocast, loss in fp32, backward, SGD; by hand and
// through accelerate.cpp.
#include <ATen/autocast_mode.h>
#include <torch/torch.h>

#include <accelerate/accelerate.h>

#include "interleave.h"

namespace {

namespace F = torch::nn::functional;

struct NetImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) {
    return fc3(torch::relu(fc2(torch::relu(fc1(x)))));
  }
  torch::nn::Linear fc1 = register_module("fc1", torch::nn::Linear(256, 512));
  torch::nn::Linear fc2 = register_module("fc2", torch::nn::Linear(512, 512));
  torch::nn::Linear fc3 = register_module("fc3", torch::nn::Linear(512, 10));
};
TORCH_MODULE(Net);

}  // namespace

int main() {
  accelerate::benchmarks::keep_freed_memory();
  torch::set_num_threads(1);
  torch::manual_seed(1);
  const torch::Tensor inputs = torch::randn({64, 256});
  const torch::Tensor labels = torch::randint(10, {64});

  Net plain_net;
  torch::optim::SGD plain(
      plain_net->parameters(), torch::optim::SGDOptions(1e-3));
  const auto by_hand = [&] {
    plain.zero_grad();
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
    const torch::Tensor output = plain_net->forward(inputs).to(torch::kFloat);
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
    F::cross_entropy(output, labels).backward();
    plain.step();
  };

  const accelerate::Accelerator accelerator(
      {.mixed_precision = accelerate::Precision::bf16, .cpu = true});
  Net net;
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(1e-3));
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  const auto through_handles = [&, &model = model, &optimizer = optimizer] {
    optimizer.zero_grad();
    accelerator.backward(F::cross_entropy(model(inputs), labels));
    optimizer.step();
  };
  using namespace accelerate::benchmarks;
  report_interleaved(
      "precision", "bf16_step_us", interleave(60, 5, through_handles, by_hand));
  return 0;
}
