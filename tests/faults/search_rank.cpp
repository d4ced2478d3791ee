// A rank that searches for a batch size; rank 1 can map less memory than the
// others, and runs out of it in a backward while they wait for its gradients.
// The first argument, "replicated" or "sharded", says how the model is trained.
#include <fstream>
#include <iostream>
#include <string>
#include <vector>

#include <sys/resource.h>
#include <unistd.h>

#include <torch/torch.h>

#include <accelerate/accelerate.h>

namespace {

constexpr rlim_t kHeadroom = rlim_t{2} << 30;
constexpr std::int64_t kFirstBatch = 4096;
constexpr std::int64_t kWidth = 256;

// From here on this process can map only `num_bytes` more than it has.
void limit_memory(rlim_t num_bytes) {
  rlim_t num_pages = 0;
  std::ifstream("/proc/self/statm") >> num_pages;
  const auto page = static_cast<rlim_t>(sysconf(_SC_PAGESIZE));
  const rlimit limit{num_pages * page + num_bytes, RLIM_INFINITY};
  if (setrlimit(RLIMIT_AS, &limit) != 0)
    throw std::runtime_error("setrlimit failed");
}

// Identity whose backward maps 1 MiB per sample without touching it.
struct TakeMemory : torch::autograd::Function<TakeMemory> {
  static at::Tensor forward(
      torch::autograd::AutogradContext*,
      const at::Tensor& x) {
    return x.clone();
  }
  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext*,
      torch::autograd::variable_list gradients) {
    at::empty({gradients[0].size(0), 1 << 20}, at::kByte);
    return gradients;
  }
};

// Returns the bias's gradient, averaged over the ranks: the batch size if all
// ranks have the same.
float train(
    std::int64_t batch_size,
    const accelerate::WorldOptions& world,
    bool is_sharded) {
  accelerate::AcceleratorOptions options;
  options.world = world;
  if (is_sharded)
    options.parallel.fully_sharded =
        accelerate::FullyShardedDataParallelOptions();
  accelerate::Accelerator accelerator(options);
  torch::nn::Sequential net(
      torch::nn::Linear(kWidth, kWidth), torch::nn::Linear(kWidth, kWidth));
  torch::optim::SGD sgd(net->parameters(), 0.1);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  const at::Tensor y = model(at::ones({batch_size, kWidth}));
  accelerator.backward(TakeMemory::apply(y).sum());
  const at::Tensor gradient = sgd.param_groups().front().params().back().grad();
  const auto mean = gradient[0].item<float>();
  optimizer.step();
  return mean;
}

void run(bool is_sharded) {
  const accelerate::World world;
  if (world.rank() == 1) limit_memory(kHeadroom);
  std::string tried;
  const float mean = accelerate::find_executable_batch_size(
      [&](std::int64_t batch_size, const accelerate::WorldOptions& of_try) {
        tried += " " + std::to_string(batch_size);
        return train(batch_size, of_try, is_sharded);
      },
      {.starting_batch_size = kFirstBatch,
       .reduce_batch_size = [](std::int64_t size) { return size / 8; },
       .group = world.group()});
  // The search's group still works after the failed try.
  world.wait_for_everyone();
  std::cout << "tried" << tried << ", mean " << mean << std::endl;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    run(argc > 1 && std::string(argv[1]) == "sharded");
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 3;
  }
  return 0;
}
