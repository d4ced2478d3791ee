// A rank that trains a sharded net for three steps on the same global batches,
// whatever the number and the devices of the ranks. `checkpoint_rank train DIR`
// saves its state after two steps, and its weights after three.
// `checkpoint_rank resume DIR FROM [TO]` loads the state FROM, saves it as TO,
// takes the third step, and compares.
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <string>
#include <vector>

#include <ATen/Functions.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/serialize.h>

#include <accelerate/accelerate.h>

namespace {

using at::Tensor;

struct NetImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) { return down(torch::tanh(up(x))); }
  torch::nn::Linear up = register_module("up", torch::nn::Linear(24, 48));
  torch::nn::Linear down = register_module("down", torch::nn::Linear(48, 24));
};
TORCH_MODULE(Net);

void compare(const std::vector<Tensor>& found, const std::string& file) {
  std::vector<Tensor> expected;
  torch::load(expected, file);
  TORCH_CHECK(found.size() == expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    TORCH_CHECK(
        at::allclose(found[i], expected[i], 1e-4, 1e-5),
        "parameter ",
        i,
        " differs after the third step");
  }
}

void run_steps(const std::vector<std::string>& words) {
  const std::filesystem::path directory = words.at(2);
  const std::string weights_file = directory / "weights.pt";
  const char* const size = std::getenv("WORLD_SIZE");
  accelerate::AcceleratorOptions options;
  options.parallel.shard = size == nullptr ? 1 : std::atoi(size);
  const accelerate::Accelerator accelerator(options);
  torch::manual_seed(7);
  Net net;
  torch::optim::Adam adam(net->parameters(), torch::optim::AdamOptions(0.01));
  auto [model, optimizer] = accelerator.prepare(net, adam);
  const auto step = [&, &model = model, &optimizer = optimizer](int number) {
    const Tensor rows =
        torch::sin(torch::arange(12 * 24) + number).view({12, 24});
    const std::int64_t num_rows = 12 / accelerator.num_processes();
    const Tensor mine =
        rows.narrow(0, accelerator.process_index() * num_rows, num_rows);
    optimizer.zero_grad();
    accelerator.backward(model(mine.to(accelerator.device())).pow(2).mean());
    optimizer.step();
  };
  const auto weights = [&, &model = model] {
    std::vector<Tensor> all;
    for (const auto& [name, tensor] :
         accelerator.get_state_dict(model, {.rank0_only = false}))
      all.push_back(tensor.detach().cpu().clone());
    return all;
  };
  if (words.at(1) == "train") {
    step(0);
    step(1);
    static_cast<void>(accelerator.save_state(directory / "trained"));
    step(2);
    const auto after = weights();
    if (accelerator.is_main_process()) torch::save(after, weights_file);
    return;
  }
  accelerator.load_state(directory / words.at(3));
  if (words.size() > 4)
    static_cast<void>(accelerator.save_state(directory / words.at(4)));
  step(2);
  compare(weights(), weights_file);
  accelerator.print(
      "the third step on " + accelerator.device().str() +
      " is the one that was not interrupted");
}

}  // namespace

int main(int argc, char** argv) {
  try {
    run_steps({argv, argv + argc});
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 3;
  }
  return 0;
}
