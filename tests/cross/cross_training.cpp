// Trains a small network for a few epochs, from a checkpoint if one is given,
// and saves one that Python's Accelerate reads. Prints the mean loss over the
// ranks of every step. cross_training.py does the same in Python.
//
//   cross_training OPTIMIZER EPOCHS SAVE_TO [LOAD_FROM]
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>

#include <torch/torch.h>

#include <accelerate/accelerate.h>
#include <accelerate/optimizers.h>

namespace {

using namespace accelerate;

// Numbers that both languages compute alike.
at::Tensor wave(std::int64_t count, double step) {
  return torch::sin(torch::arange(count, torch::kDouble) * step)
      .to(torch::kFloat);
}

torch::nn::Sequential make_net() {
  torch::nn::Sequential net(
      torch::nn::Linear(4, 8), torch::nn::Tanh(), torch::nn::Linear(8, 1));
  const torch::NoGradGuard no_grad;
  for (const at::Tensor& parameter : net->parameters()) {
    parameter.copy_(wave(parameter.numel(), 0.7).view(parameter.sizes()) / 2);
  }
  return net;
}

std::unique_ptr<torch::optim::Optimizer> make_optimizer(
    const std::string& name,
    const std::vector<at::Tensor>& parameters) {
  if (name == "AdamW") {
    return std::make_unique<optim::AdamW>(
        parameters, torch::optim::AdamWOptions(0.02));
  }
  if (name == "Adam") {
    return std::make_unique<torch::optim::Adam>(
        parameters, torch::optim::AdamOptions(0.02).amsgrad(true));
  }
  if (name == "SGD") {
    return std::make_unique<torch::optim::SGD>(
        parameters, torch::optim::SGDOptions(0.05).momentum(0.9));
  }
  if (name == "Adagrad") {
    return std::make_unique<torch::optim::Adagrad>(
        parameters, torch::optim::AdagradOptions(0.05));
  }
  return std::make_unique<torch::optim::RMSprop>(
      parameters, torch::optim::RMSpropOptions(0.01).momentum(0.5));
}

void train(int argc, char** argv) {
  AcceleratorOptions options;
  // Python's scheduler makes a step per process, too.
  options.scheduler.step_with_processes = true;
  const Accelerator accelerator(options);
  auto net = make_net();
  const auto inner = make_optimizer(argv[1], net->parameters());
  optim::StepLR schedule(*inner, {.step_size = 10, .gamma = 0.8});
  auto [model, optimizer, scheduler, loader] = accelerator.prepare(
      net,
      *inner,
      schedule,
      DataLoader(
          TensorDataset(
              wave(24 * 4, 0.3).view({24, 4}), wave(24, 1.1).view({24, 1})),
          {.batch_size = 4}));
  int epoch = 0;
  accelerator.register_for_checkpointing("epoch", epoch);
  if (argc > 4) accelerator.load_state(argv[4]);
  const int last = epoch + std::atoi(argv[2]);
  for (; epoch < last; ++epoch) {
    for (auto& [x, y] : loader) {
      const at::Tensor loss = torch::mse_loss(model(x), y);
      accelerator.backward(loss);
      optimizer.step();
      scheduler.step();
      optimizer.zero_grad();
      const double mean =
          accelerator.gather(loss.detach().view({1})).mean().item<double>();
      if (accelerator.is_main_process()) std::printf("%.9f\n", mean);
    }
  }
  static_cast<void>(accelerator.save_state(
      argv[3], {.layout = CheckpointLayout::accelerate}));
  accelerator.finish();
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc < 4) throw ConfigError("OPTIMIZER EPOCHS SAVE_TO [LOAD_FROM]");
    train(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "cross_training: %s\n", error.what());
    return 1;
  }
  return 0;
}
