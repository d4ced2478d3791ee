// Losses and their gradients: accelerate.cpp's fused functions compared with
// LibTorch's cross_entropy on fp32 logits, as programs call it by hand.
#include <torch/torch.h>

#include <string>

#include <accelerate/fused.h>

#include "interleave.h"
#include "memory.h"

namespace {

namespace F = torch::nn::functional;
using namespace accelerate::benchmarks;

struct Case {
  std::string name;
  std::int64_t rows;
  std::int64_t classes;
  torch::ScalarType dtype;
  int num_blocks;
};

void backward(const torch::Tensor& loss, const torch::Tensor& leaf) {
  (void)torch::autograd::grad({loss}, {leaf});
}

// The memory that one call needs beside what there was, in bytes.
template <class Call>
double peak_of(Call&& call) {
  forget_peak();
  const double before = memory_of_process("VmRSS");
  call();
  return memory_of_process("VmHWM") - before;
}

void report_peak(const std::string& metric, double ours, double plain) {
  report({"fused", metric, ours / 1e6, "MB", plain / 1e6, ours / plain, 1});
}

void run_cross_entropy(const Case& each) {
  const torch::Tensor logits =
      torch::randn({each.rows, each.classes}).to(each.dtype).requires_grad_();
  const torch::Tensor targets = torch::randint(each.classes, {each.rows});
  const auto ours = [&] {
    backward(accelerate::fused_cross_entropy(logits, targets), logits);
  };
  const auto plain = [&] {
    backward(F::cross_entropy(logits.to(torch::kFloat), targets), logits);
  };
  report_interleaved(
      "fused",
      "cross_entropy_" + each.name + "_us",
      interleave(each.num_blocks, 1, ours, plain));
  report_peak(
      "cross_entropy_" + each.name + "_peak", peak_of(ours), peak_of(plain));
}

void run_linear(const Case& each) {
  constexpr std::int64_t kFeatures = 256;
  const torch::Tensor hidden =
      torch::randn({each.rows, kFeatures}).to(each.dtype).requires_grad_();
  const torch::Tensor weight = (torch::randn({each.classes, kFeatures}) / 16)
                                   .to(each.dtype)
                                   .requires_grad_();
  const torch::Tensor targets = torch::randint(each.classes, {each.rows});
  const auto step = [&](const torch::Tensor& loss) {
    (void)torch::autograd::grad({loss}, {hidden, weight});
  };
  const auto ours = [&] {
    step(accelerate::fused_linear_cross_entropy(hidden, weight, targets));
  };
  const auto plain = [&] {
    step(F::cross_entropy(
        torch::linear(hidden, weight).to(torch::kFloat), targets));
  };
  report_interleaved(
      "fused",
      "linear_cross_entropy_" + each.name + "_us",
      interleave(each.num_blocks, 1, ours, plain));
  report_peak(
      "linear_cross_entropy_" + each.name + "_peak",
      peak_of(ours),
      peak_of(plain));
}

}  // namespace

int main() {
  torch::set_num_threads(1);
  torch::manual_seed(1);
  for (const Case& each :
       {Case{"256_fp32", 1024, 256, torch::kFloat, 200},
        Case{"256_bf16", 1024, 256, torch::kBFloat16, 200},
        Case{"50304_fp32", 1024, 50304, torch::kFloat, 9},
        Case{"50304_bf16", 1024, 50304, torch::kBFloat16, 9}})
    run_cross_entropy(each);
  for (const Case& each :
       {Case{"50304_fp32", 1024, 50304, torch::kFloat, 5},
        Case{"50304_bf16", 1024, 50304, torch::kBFloat16, 5}})
    run_linear(each);
  return 0;
}
