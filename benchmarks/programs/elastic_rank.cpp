// One of two ranks of an elastic program. In the first generation, the second
// rank kills itself when a state is in memory. Appends to FILE the time of that,
// and of the end of the first step afterwards, in nanoseconds of the monotonic
// clock.
//
//   bench_elastic_rank FILE
#include <time.h>

#include <csignal>
#include <cstdio>
#include <filesystem>

#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

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

void train(accelerate::ElasticContext& context, const char* file) {
  const accelerate::Accelerator accelerator({.cpu = true, .journal = false});
  torch::nn::Linear net(512, 512);
  torch::optim::AdamW adamw(net->parameters(), 1e-3);
  auto [model, optimizer] = accelerator.prepare(net, adamw);
  const bool has_state = context.resume(accelerator);
  constexpr int kStepsBefore = 40;
  for (int i = 1;; ++i) {
    optimizer.zero_grad();
    accelerator.backward(model(torch::ones({2, 512})).sum());
    optimizer.step();
    if (context.generation() > 1) {
      if (accelerator.is_main_process() && has_state) stamp(file);
      accelerator.finish();
      return;
    }
    if (context.step_done(accelerator)) return;
    if (i == kStepsBefore && accelerator.process_index() == 1) {
      stamp(file);
      std::raise(SIGKILL);
    }
  }
}

}  // namespace

int main(int, char** argv) {
  accelerate::run_elastic(
      [&](accelerate::ElasticContext& context) { train(context, argv[1]); },
      {.redundancy = accelerate::Redundancy::neighbour,
       .redundancy_steps = 10});
  return 0;
}
