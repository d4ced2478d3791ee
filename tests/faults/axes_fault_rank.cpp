// Three ranks that share layers or sequences. In the second step the last rank
// exits where the others wait for its messages: axes_fault_rank TRAFFIC PHASE,
// where TRAFFIC is tensor, slices (of the sequence, between split layers),
// allgather, alltoall or heads, and PHASE is forward or backward.
#include <cstdlib>
#include <iostream>
#include <optional>
#include <string>

#include <ATen/ATen.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <accelerate/accelerate.h>

namespace {

using at::Tensor;

struct Fault {
  std::string traffic;
  std::string phase;
};

// Attention between two linear layers, where a rank can leave.
struct LeavingImpl : torch::nn::Module {
  LeavingImpl() {
    register_module("up", up);
    register_module("down", down);
  }
  Tensor forward(const Tensor& x) {
    const Tensor hidden = up(x);
    if (leaves_in == "forward") std::_Exit(0);
    if (leaves_in == "backward")
      hidden.register_hook([](const Tensor&) { std::_Exit(0); });
    if (!attends) return down(torch::relu(hidden));
    const Tensor heads = hidden.unflatten(-1, {4, 4}).transpose(1, 2);
    const Tensor mixed = at::scaled_dot_product_attention(heads, heads, heads);
    // The remaining ranks notice it in this attention's backward.
    if (leaves_in == "backward")
      mixed.register_hook([](const Tensor&) { std::_Exit(0); });
    return down(mixed.transpose(1, 2).flatten(-2));
  }
  torch::nn::Linear up{16, 16}, down{16, 16};
  bool attends = false;
  std::string leaves_in;
};
TORCH_MODULE(Leaving);

void train(const Fault& fault) {
  const bool has_slices = fault.traffic == "slices";
  const bool is_tensor = fault.traffic == "tensor" || has_slices;
  accelerate::AcceleratorOptions options;
  if (is_tensor) {
    options.parallel.tensor = 3;
    options.parallel.parallelize_plan = accelerate::ParallelizePlan{
        {"up", accelerate::ColwiseParallel{}},
        {"down", accelerate::RowwiseParallel{}}};
    if (has_slices) {
      const accelerate::Shard positions{1};
      options.parallel.parallelize_plan = accelerate::ParallelizePlan{
          {"up", accelerate::ColwiseParallel{.input_layouts = positions}},
          {"down", accelerate::RowwiseParallel{.output_layouts = positions}}};
    }
  } else {
    options.parallel.context = 3;
  }
  const accelerate::Accelerator accelerator(options);
  Leaving net;
  net->attends = !is_tensor;
  torch::optim::SGD sgd(net->parameters(), 0.1);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  for (int step = 0; step < 3; ++step) {
    if (step == 1 && accelerator.world().is_last_process())
      net->leaves_in = fault.phase;
    Tensor x = at::ones({1, 12, 16});
    std::optional<accelerate::ContextParallelScope> sequence;
    if (!is_tensor) {
      accelerate::ContextParallelOptions divided;
      divided.exchange_heads = fault.traffic == "heads";
      divided.rotation = fault.traffic == "alltoall"
          ? accelerate::KeyValueRotation::alltoall
          : accelerate::KeyValueRotation::allgather;
      sequence.emplace(
          accelerator.maybe_context_parallel({x}, {1}, {}, divided));
    }
    optimizer.zero_grad();
    accelerator.backward(model(x).pow(2).mean());
    optimizer.step();
  }
}

}  // namespace

int main(int, char** argv) {
  try {
    train({argv[1], argv[2]});
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 3;
  }
  return 0;
}
