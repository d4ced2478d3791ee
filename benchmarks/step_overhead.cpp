// The overhead of the handles in a training step of a small net: the same loop
// by hand and through accelerate.cpp, in interleaved blocks. Both train the
// same tensors, because the addresses of weights and gradients change the time
// of a step by more than the handles do.
#include <chrono>
#include <cstdlib>
#include <vector>

#include <torch/torch.h>

#include <accelerate/accelerate.h>

#include "instructions.h"
#include "report.h"

namespace {

using namespace accelerate::benchmarks;
namespace F = torch::nn::functional;
using Clock = std::chrono::steady_clock;

constexpr int kStepsInBlock = 50;
constexpr int kBlocks = 400;

struct NetImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) {
    return fc2(torch::relu(fc1(x)));
  }
  torch::nn::Linear fc1 = register_module("fc1", torch::nn::Linear(64, 64));
  torch::nn::Linear fc2 = register_module("fc2", torch::nn::Linear(64, 10));
};
TORCH_MODULE(Net);

struct Block {
  double microseconds;  ///< per step
  double instructions;  ///< per step; 0 if they cannot be counted
};

template <class Step>
Block measure(const Instructions& instructions, Step&& step) {
  const double before = instructions.count().value_or(0);
  const auto start = Clock::now();
  for (int i = 0; i < kStepsInBlock; ++i) step();
  const std::chrono::duration<double, std::micro> elapsed =
      Clock::now() - start;
  const double executed = instructions.count().value_or(0) - before;
  return {elapsed.count() / kStepsInBlock, executed / kStepsInBlock};
}

}  // namespace

int main() {
  torch::set_num_threads(1);
  torch::manual_seed(1);
  const torch::Tensor inputs = torch::randn({32, 64});
  const torch::Tensor labels = torch::randint(10, {32});

  const accelerate::Accelerator accelerator;
  Net net;
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(1e-3));
  const auto by_hand = [&] {
    sgd.zero_grad();
    const torch::Tensor loss = F::cross_entropy(net->forward(inputs), labels);
    loss.backward();
    sgd.step();
  };

  auto [model, optimizer] = accelerator.prepare(net, sgd);
  const auto through_handles = [&, &model = model, &optimizer = optimizer] {
    const auto micro_step = accelerator.accumulate(model);
    optimizer.zero_grad();
    const torch::Tensor loss = F::cross_entropy(model(inputs), labels);
    accelerator.backward(loss);
    optimizer.step();
  };

  const Instructions instructions;
  measure(instructions, by_hand);
  measure(instructions, through_handles);
  std::vector<double> hand, handles, added, added_instructions;
  for (int block = 0; block < kBlocks; ++block) {
    // The order alternates, so that a trend favours neither.
    Block one, other;
    if (block % 2 == 0) {
      one = measure(instructions, by_hand);
      other = measure(instructions, through_handles);
    } else {
      other = measure(instructions, through_handles);
      one = measure(instructions, by_hand);
    }
    hand.push_back(one.microseconds);
    handles.push_back(other.microseconds);
    added.push_back(other.microseconds - one.microseconds);
    added_instructions.push_back(other.instructions - one.instructions);
  }
  report(
      {"step_overhead",
       "step_us",
       median(handles),
       "us",
       median(hand),
       median(handles) / median(hand),
       hand.size()});
  report(
      {"step_overhead",
       "added_us",
       median(added),
       "us",
       0.0,
       median(handles) / median(hand),
       added.size()});
  if (instructions.complaint().empty()) {
    report(
        {"step_overhead",
         "added_instructions",
         median(added_instructions),
         "",
         0.0,
         median(handles) / median(hand),
         added_instructions.size()});
  } else {
    std::fprintf(
        stderr,
        "step_overhead: instructions are not counted here: "
        "perf_event_open: %s\n",
        instructions.complaint().c_str());
  }
  return 0;
}
