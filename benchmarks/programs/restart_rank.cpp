// One of two ranks. In the first attempt, the second rank kills itself after
// its first step. Appends to FILE the time of that, and of the first step of
// the next attempt, in nanoseconds of the monotonic clock.
//
//   bench_restart_rank FILE
#include <time.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <accelerate/accelerate.h>

namespace {

void stamp(const char* file) {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  FILE* out = std::fopen(file, "a");
  std::fprintf(
      out,
      "%lld\n",
      static_cast<long long>(now.tv_sec) * 1'000'000'000 + now.tv_nsec);
  std::fclose(out);
}

}  // namespace

int main(int, char** argv) {
  const bool is_first =
      std::strcmp(std::getenv("TORCHELASTIC_RESTART_COUNT"), "0") == 0;
  const accelerate::Accelerator accelerator({.cpu = true});
  torch::nn::Linear net(64, 64);
  torch::optim::SGD sgd(net->parameters(), 0.1);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  const auto step = [&, &model = model, &optimizer = optimizer] {
    optimizer.zero_grad();
    accelerator.backward(model(torch::ones({2, 64})).sum());
    optimizer.step();
  };
  step();
  if (is_first && accelerator.process_index() == 1) {
    stamp(argv[1]);
    std::raise(SIGKILL);
  }
  if (!is_first && accelerator.is_main_process()) stamp(argv[1]);
  // In the first attempt, the other rank trains until it is ended.
  while (is_first) step();
  return 0;
}
