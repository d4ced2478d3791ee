// The program that `accelerate-cpp test` runs on the configured layout. Rank 0
// prints one line per successful check; a failed check ends the program with a
// message that names it.
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include <torch/torch.h>

#include <accelerate/accelerate.h>

#include "base/machine/gpu_links.h"
#include "config/environment.h"

namespace {

namespace fs = std::filesystem;
using accelerate::Accelerator;

void require(bool condition, const std::string& what) {
  if (!condition) throw std::runtime_error(what);
}

at::Tensor filled(const Accelerator& accelerator, double value) {
  return torch::full({2}, value).to(accelerator.device());
}

void check_collectives(const Accelerator& accelerator) {
  const int ranks = accelerator.num_processes();
  const at::Tensor mine = filled(accelerator, accelerator.process_index() + 1);
  const at::Tensor sum =
      accelerator.reduce(mine, accelerate::ReduceOp::sum).cpu();
  require(
      sum[0].item<double>() == ranks * (ranks + 1) / 2.0,
      "the sum over the ranks is " + std::to_string(sum[0].item<double>()));
  const at::Tensor all = accelerator.gather(mine).cpu();
  require(all.numel() == 2 * ranks, "gather lost elements");
  for (int i = 0; i < ranks; ++i) {
    require(
        all[2 * i].item<double>() == i + 1, "gather changed the ranks' order");
  }
  const std::string word = accelerate::broadcast_object(
      "from " + std::to_string(accelerator.process_index()),
      accelerator.world().group());
  require(word == "from 0", "broadcast gave \"" + word + "\"");
  accelerator.wait_for_everyone();
}

void check_data(const Accelerator& accelerator) {
  constexpr std::int64_t kSamples = 101;
  auto loader = accelerator.prepare(accelerate::DataLoader(
      accelerate::TensorDataset(
          torch::arange(kSamples), torch::arange(kSamples)),
      {.batch_size = 4, .shuffle = true}));
  std::vector<int> times(kSamples, 0);
  for (auto& [numbers, same] : loader) {
    const at::Tensor all = accelerator.gather_for_metrics(numbers).cpu();
    for (std::int64_t i = 0; i < all.numel(); ++i) {
      ++times[static_cast<std::size_t>(all[i].item<std::int64_t>())];
    }
  }
  for (std::size_t i = 0; i < times.size(); ++i) {
    require(
        times[i] == 1,
        "sample " + std::to_string(i) + " came " + std::to_string(times[i]) +
            " times");
  }
}

void check_split(const Accelerator& accelerator) {
  std::vector<int> numbers(10);
  for (int i = 0; i < 10; ++i) numbers[static_cast<std::size_t>(i)] = i;
  const std::vector<int> all = accelerate::gather_object(
      accelerator.split_between_processes(numbers),
      accelerator.world().group());
  require(
      all == numbers, "gathering the parts of a list does not give the list");
}

torch::nn::Sequential make_net() {
  torch::manual_seed(5);
  return torch::nn::Sequential(
      torch::nn::Linear(8, 16), torch::nn::Tanh(), torch::nn::Linear(16, 1));
}

// Compares a few steps on all ranks with the same steps on the global batches
// in this process.
void check_training(const Accelerator& accelerator) {
  constexpr std::int64_t kBatch = 4, kSteps = 6;
  const std::int64_t round = kBatch * accelerator.num_processes();
  torch::manual_seed(3);
  const at::Tensor x = torch::randn({round * kSteps, 8});
  const at::Tensor y = x.sum(1, true).sin();

  torch::nn::Sequential net = make_net();
  torch::optim::SGD sgd(net->parameters(), 0.1);
  auto [model, optimizer, loader] = accelerator.prepare(
      net,
      sgd,
      accelerate::DataLoader(
          accelerate::TensorDataset(x, y), {.batch_size = kBatch}));
  for (auto& [inputs, targets] : loader) {
    optimizer.zero_grad();
    accelerator.backward(
        torch::mse_loss(model(inputs).to(torch::kFloat), targets));
    optimizer.step();
  }

  torch::nn::Sequential alone = make_net();
  torch::optim::SGD alone_sgd(alone->parameters(), 0.1);
  for (std::int64_t step = 0; step < kSteps; ++step) {
    alone_sgd.zero_grad();
    const auto from = step * round;
    torch::mse_loss(
        alone->forward(x.slice(0, from, from + round)),
        y.slice(0, from, from + round))
        .backward();
    alone_sgd.step();
  }
  // Lower precision gets a larger tolerance.
  const bool is_exact =
      accelerator.state().mixed_precision == accelerate::Precision::no;
  const double tolerance = is_exact ? 1e-5 : 5e-2;
  const auto here = net->parameters();
  const auto there = alone->parameters();
  for (std::size_t i = 0; i < here.size(); ++i) {
    const double off =
        (here[i].detach().cpu() - there[i].detach()).abs().max().item<double>();
    require(
        off <= tolerance,
        "after a few steps a weight is off by " + std::to_string(off) +
            " from training in one process");
  }
}

fs::path shared_directory(const Accelerator& accelerator) {
  std::string name;
  if (accelerator.is_main_process()) {
    name = (fs::temp_directory_path() / "accelerate-cpp-test-XXXXXX").string();
    require(::mkdtemp(name.data()) != nullptr, "no temporary directory");
  }
  return accelerate::broadcast_object(name, accelerator.world().group());
}

void check_checkpoint(const Accelerator& accelerator) {
  torch::nn::Sequential net = make_net();
  torch::optim::Adam adam(net->parameters(), 0.1);
  auto [model, optimizer] = accelerator.prepare(net, adam);
  const auto step = [&, &model = model, &optimizer = optimizer] {
    optimizer.zero_grad();
    accelerator.backward(model(torch::ones({2, 8}).to(accelerator.device()))
                             .to(torch::kFloat)
                             .sum());
    optimizer.step();
  };
  step();
  const fs::path directory = shared_directory(accelerator);
  static_cast<void>(accelerator.save_state(directory / "checkpoint"));
  const at::Tensor saved = net->parameters()[0].detach().clone();
  step();
  require(!net->parameters()[0].equal(saved), "a step of Adam changed nothing");
  accelerator.load_state(directory / "checkpoint");
  require(
      net->parameters()[0].equal(saved),
      "loading does not give back what was saved");
  accelerator.wait_for_everyone();
  if (accelerator.is_main_process()) fs::remove_all(directory);
}

// What connects GPUs, for users whose collectives are slow or fail.
void print_devices(const Accelerator& accelerator) {
  using accelerate::detail::Environment;
  if (!accelerator.is_local_main_process()) return;
  const auto facts = accelerate::detail::nvidia_facts(
      accelerate::detail::open_nccl(
          Environment::current().get("ACCELERATE_NCCL_LIBRARY"),
          reinterpret_cast<const void*>(&at::_ops::empty_memory_format::call)),
      accelerate::detail::open_nvml_links());
  for (const auto& [name, value] : facts)
    accelerator.print(name + ": " + value);
}

}  // namespace

int main() {
  std::string step = "starting";
  try {
    const Accelerator accelerator;
    accelerator.print(
        std::to_string(accelerator.num_processes()) + " ranks, device " +
        accelerator.device().str() + ", precision " +
        std::string(name_of(accelerator.state().mixed_precision)) +
        (accelerator.state().backend.empty()
             ? ""
             : ", connected by " + accelerator.state().backend));
    print_devices(accelerator);
    const std::vector<
        std::pair<const char*, std::function<void(const Accelerator&)>>>
        checks{
            {"collectives", check_collectives},
            {"every sample once", check_data},
            {"lists between processes", check_split},
            {"training as in one process", check_training},
            {"checkpoint and back", check_checkpoint}};
    for (const auto& [name, check] : checks) {
      step = name;
      check(accelerator);
      // Releases what the check prepared.
      accelerator.free_memory();
      accelerator.print(std::string(name) + ": ok");
    }
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: FAILED: %s\n", step.c_str(), error.what());
    return 1;
  }
}
