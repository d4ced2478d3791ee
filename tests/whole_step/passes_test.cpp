// How often a step in bf16 passes over weights and gradients.
#include <map>
#include <string_view>

#include <ATen/record_function.h>

#include <accelerate/accelerate.h>

#include "support/counted_operators.h"

namespace accelerate {
namespace passes_test {

using testing::CountedOperators;
using torch::Tensor;

// Counts casts by the number of elements and the dtype that is cast from.
class CountedCasts {
 public:
  using Key = std::pair<std::int64_t, at::ScalarType>;

  CountedCasts()
      : handle_(at::addThreadLocalCallback(
            at::RecordFunctionCallback(&begin).needsInputs(true).scopes(
                {at::RecordScope::FUNCTION}))) {
    counts.clear();
  }
  ~CountedCasts() { at::removeCallback(handle_); }
  CountedCasts(const CountedCasts&) = delete;
  CountedCasts& operator=(const CountedCasts&) = delete;

  [[nodiscard]] int of(std::int64_t numel, at::ScalarType from) const {
    const auto found = counts.find({numel, from});
    return found == counts.end() ? 0 : found->second;
  }

 private:
  static std::unique_ptr<at::ObserverContext> begin(
      const at::RecordFunction& function) {
    if (std::string_view(function.name()) == "aten::_to_copy") {
      const Tensor input = function.inputs()[0].toTensor();
      ++counts[{input.numel(), input.scalar_type()}];
    }
    return nullptr;
  }

  static inline thread_local std::map<Key, int> counts;
  at::CallbackHandle handle_;
};

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
