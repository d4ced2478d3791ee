// How often a step in bf16 passes over weights and gradients.
#include <accelerate/accelerate.h>

#include "support/counted_operators.h"
#include "whole_step/counted_casts.h"

namespace accelerate {
namespace passes_test {

using testing::CountedCasts;
using testing::CountedOperators;
using torch::Tensor;

// No two tensors of a step have the same number of elements.
struct NetImpl : torch::nn::Module {
  NetImpl() {
    first = register_module("first", torch::nn::Linear(7, 11));
    second = register_module("second", torch::nn::Linear(11, 13));
    last = register_module("last", torch::nn::Linear(13, 5));
  }
  Tensor forward(const Tensor& x) {
    return last(torch::relu(second(torch::relu(first(x)))));
  }
  torch::nn::Linear first = nullptr, second = nullptr, last = nullptr;
};
TORCH_MODULE(Net);

TEST(PassesOfAStep, CastEachWeightAndEachGradientOnce) {
  const Accelerator accelerator(
      {.mixed_precision = Precision::bf16, .cpu = true});
  Net net;
  torch::optim::AdamW adamw(net->parameters());
  const auto [model, optimizer] = accelerator.prepare(net, adamw);
  const auto step = [&, &model = model, &optimizer = optimizer] {
    accelerator.backward(model(torch::ones({2, 17, 7})).sum());
    optimizer.step({.max_norm = 1.0});
    optimizer.zero_grad();
  };
  for (int i = 0; i < 2; ++i) step();
  {
    const CountedCasts casts;
    step();
    for (const auto& parameter : net->named_parameters()) {
      const std::int64_t numel = parameter->numel();
      EXPECT_EQ(casts.of(numel, at::kFloat), 1) << parameter.key();
      EXPECT_EQ(casts.of(numel, at::kBFloat16), 1) << parameter.key();
    }
  }
  const CountedOperators operators;
  step();
  // The program calls add_, which does nothing.
  EXPECT_EQ(operators.of("aten::addmm"), 3);
  EXPECT_EQ(operators.of("aten::_fused_adamw_"), 1);
  EXPECT_EQ(operators.of("aten::_foreach_mul_"), 0);
  for (const Tensor& parameter : net->parameters())
    EXPECT_FALSE(parameter.grad().defined());
}

}  // namespace passes_test
}  // namespace accelerate
