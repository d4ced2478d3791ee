#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <string>

#include <ATen/Functions.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <accelerate/accelerate.h>

namespace {

// Steps on a tensor that belongs to no model, which causes a warning.
void step_on_untracked_tensor(const accelerate::Accelerator& accelerator) {
  torch::optim::SGD sgd({at::ones({1}).requires_grad_()}, 0.1);
  accelerator.prepare(sgd).step();
}

// Sample 5 cannot be read.
struct TornData {
  [[nodiscard]] std::int64_t size() const { return 8; }
  [[nodiscard]] std::tuple<at::Tensor> get(std::int64_t i) const {
    if (i == 5) throw std::runtime_error("the file is torn");
    return {at::ones({1})};
  }
};

// Rank 1 of two reads the torn sample in its third batch, while rank 0 waits
// for rank 1.
void read_torn_data(const accelerate::Accelerator& accelerator) {
  auto loader = accelerator.prepare(
      accelerate::DataLoader(TornData(), {.batch_size = 1, .num_workers = 2}));
  for (auto& [x] : loader) accelerator.world().group().all_reduce(x);
}

// The last rank exits, or allocates too much memory, in the first forward,
// before the execution order is known and parameters are prefetched; or it
// exits before the third backward.
struct LeavingImpl : torch::nn::Module {
  LeavingImpl() { register_module("layers", layers); }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor h = layers[0]->as<torch::nn::Linear>()->forward(x);
    if (leaves) std::_Exit(0);
    if (wants_memory) h = h + at::empty({std::int64_t{1} << 50}).sum();
    return layers[1]->as<torch::nn::Linear>()->forward(h);
  }
  torch::nn::ModuleList layers{
      torch::nn::Linear(64, 256),
      torch::nn::Linear(256, 64)};
  bool leaves = false;
  bool wants_memory = false;
};
TORCH_MODULE(Leaving);

void train_sharded(
    const accelerate::Accelerator& accelerator,
    const std::string& what) {
  const bool in_forward = what != "reduce";
  Leaving net;
  torch::optim::SGD sgd(net->parameters(), 0.1);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  for (int step = 0; step < 4; ++step) {
    const bool is_time =
        step == (in_forward ? 0 : 2) && accelerator.world().is_last_process();
    net->leaves = is_time && what == "gather";
    net->wants_memory = is_time && what == "memory";
    optimizer.zero_grad();
    const at::Tensor loss = model(at::ones({2, 64})).pow(2).mean();
    if (is_time && !in_forward) std::_Exit(0);
    accelerator.backward(loss);
    optimizer.step();
  }
}

// The last rank is killed in the second save, once all ranks have begun it.
void save_sharded(
    const accelerate::Accelerator& accelerator,
    const std::filesystem::path& directory) {
  Leaving net;
  torch::optim::SGD sgd(net->parameters(), 0.1);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  accelerator.save_state(directory / "first");
  const auto hook = accelerator.checkpoints().register_save_state_pre_hook(
      [&](accelerate::SaveHookContext&) {
        if (accelerator.world().is_last_process()) std::raise(SIGKILL);
      });
  accelerator.save_state(directory / "second");
}

void load_sharded(
    const accelerate::Accelerator& accelerator,
    const std::filesystem::path& directory) {
  Leaving net;
  torch::optim::SGD sgd(net->parameters(), 0.1);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  accelerator.load_state(directory / "first");
}

// Steps until it is told to end, and then saves and leaves, or goes on
// ("ignore_end").
void train_until_preempted(
    const accelerate::Accelerator& accelerator,
    const std::string& what,
    const std::filesystem::path& directory) {
  torch::nn::Linear net(4, 1);
  torch::optim::SGD sgd(net->parameters(), 0.1);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  for (int step = 1;; ++step) {
    optimizer.zero_grad();
    accelerator.backward(model(at::ones({2, 4})).pow(2).mean());
    optimizer.step();
    if (accelerator.check_preemption() && what == "preempt") {
      accelerator.save_state(directory / "state");
      std::printf("left after step %d\n", step);
      return;
    }
    if (step == 3 && accelerator.is_main_process()) {
      std::puts("ready");
      std::fflush(stdout);
    }
  }
}

void run(const std::string& what, const std::filesystem::path& directory) {
  const bool is_sharded =
      what == "gather" || what == "memory" || what == "save" || what == "load";
  accelerate::AcceleratorOptions options;
  if (what == "silent") options.world.timeout = std::chrono::seconds(2);
  if (what == "shard") options.parallel.shard = 3;
  if (is_sharded)
    options.parallel.fully_sharded =
        accelerate::FullyShardedDataParallelOptions();
  if (what == "reduce")
    options.parallel.deepspeed = accelerate::DeepSpeedOptions{.zero_stage = 1};
  const accelerate::Accelerator accelerator(options);
  const accelerate::Group& group = accelerator.world().group();
  const bool is_bad = accelerator.world().is_last_process();
  group.all_reduce(at::ones({4}));
  if (what == "throw" && is_bad)
    throw std::runtime_error("the user's own mistake");
  if (what == "kill" && is_bad) std::raise(SIGKILL);
  if (what == "silent" && is_bad) std::raise(SIGSTOP);
  if (what == "leave" && is_bad) std::exit(0);
  if (what == "torn_data") read_torn_data(accelerator);
  if (what == "gather" || what == "reduce" || what == "memory")
    train_sharded(accelerator, what);
  if (what == "save") save_sharded(accelerator, directory);
  if (what == "load") load_sharded(accelerator, directory);
  if (what == "preempt" || what == "ignore_end")
    return train_until_preempted(accelerator, what, directory);
  if (what == "untracked") step_on_untracked_tensor(accelerator);
  if (what != "clean") group.all_reduce(at::ones({4}));
}

}  // namespace

int main(int argc, char** argv) {
  try {
    run(argv[1], argc > 2 ? argv[2] : "");
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 3;
  }
  return 0;
}
