// One of two ranks, the second of which kills itself. Appends to FILE the time
// of the kill, and of the first step of both ranks afterwards, if there is one,
// in nanoseconds of the monotonic clock.
//
//   bench_restart_rank FILE whole   the group is started again, or ended
//   bench_restart_rank FILE alone   only the second rank is started again
#include <time.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include <accelerate/accelerate.h>

namespace {

constexpr int kStepsBefore = 40;

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

void die(const char* file) {
  stamp(file);
  std::raise(SIGKILL);
}

// `context` is null without run_elastic().
void train(const char* file, const accelerate::ElasticContext* context) {
  const accelerate::Accelerator accelerator({.cpu = true, .journal = false});
  torch::nn::Linear net(512, 512);
  torch::optim::AdamW adamw(net->parameters(), 1e-3);
  auto [model, optimizer] = accelerator.prepare(net, adamw);
  const bool has_state = context != nullptr && context->resume(accelerator);
  const bool is_first = context != nullptr
      ? context->generation() == 1
      : std::strcmp(std::getenv("TORCHELASTIC_RESTART_COUNT"), "0") == 0;
  for (int i = 1;; ++i) {
    optimizer.zero_grad();
    accelerator.backward(model(torch::ones({2, 512})).sum());
    optimizer.step();
    if (!is_first) {
      const bool has_resumed = context == nullptr || has_state;
      if (accelerator.is_main_process() && has_resumed) stamp(file);
      accelerator.end_training();
      return;
    }
    if (context != nullptr && context->step_done(accelerator)) return;
    if (i == kStepsBefore && accelerator.process_index() == 1) die(file);
  }
}

}  // namespace

int main(int, char** argv) {
  const char* const file = argv[1];
  const std::string kind = argv[2];
  if (kind == "whole") {
    train(file, nullptr);
    return 0;
  }
  accelerate::run_elastic(
      [&](const accelerate::ElasticContext& context) { train(file, &context); },
      {.redundancy = accelerate::Redundancy::neighbour,
       .redundancy_steps = 10});
  return 0;
}
