// Clipping the gradients of a transformer's parameters by norm and by value:
// accelerate.cpp compared with LibTorch's functions.
#include <torch/torch.h>

#include <accelerate/accelerate.h>

#include "interleave.h"

namespace {

// Twelve layers of four small and four square matrices and their biases.
struct ManyImpl : torch::nn::Module {
  ManyImpl() {
    for (int layer = 0; layer < 12; ++layer) {
      for (const std::int64_t width : {64, 128, 256, 64}) {
        auto linear = register_module(
            "linear" + std::to_string(layers.size()),
            torch::nn::Linear(width, width));
        layers.push_back(linear);
      }
    }
  }
  std::vector<torch::nn::Linear> layers;
};
TORCH_MODULE(Many);

}  // namespace

int main() {
  accelerate::benchmarks::keep_freed_memory();
  torch::set_num_threads(1);
  torch::manual_seed(1);
  const accelerate::Accelerator accelerator({.cpu = true});
  Many net;
  const auto model = accelerator.prepare(net);
  for (const torch::Tensor& parameter : net->parameters()) {
    parameter.mutable_grad() = torch::randn_like(parameter);
  }
  using namespace accelerate::benchmarks;
  report_interleaved(
      "clip",
      "norm_us",
      interleave(
          100,
          20,
          [&] { accelerator.clip_grad_norm_(model, 1.0); },
          [&] { torch::nn::utils::clip_grad_norm_(net->parameters(), 1.0); }));
  report_interleaved(
      "clip",
      "value_us",
      interleave(
          100,
          20,
          [&] { accelerator.clip_grad_value_(model, 0.5); },
          [&] { torch::nn::utils::clip_grad_value_(net->parameters(), 0.5); }));
  return 0;
}
