// Adagrad makes its state in its constructor, and so before prepare().
#include <accelerate/accelerate.h>

#include "support/expect_error.h"
#include "support/named_weights.h"
#include "support/run_on_ranks.h"

namespace accelerate {
namespace adagrad_state_test {

using testing::expect_error;
using testing::run_on_ranks;
using torch::Tensor;

torch::nn::Linear layer() {
  torch::nn::Linear net(5, 3);
  const torch::NoGradGuard no_grad;
  double number = 0;
  for (Tensor& parameter : net->parameters()) {
    parameter.copy_((torch::sin(torch::arange(parameter.numel()) + ++number))
                        .view(parameter.sizes()));
  }
  return net;
}

torch::optim::AdagradOptions options() {
  return torch::optim::AdagradOptions(0.3).initial_accumulator_value(0.25);
}

template <class Adagrad>
Tensor train(
    const ParallelOptions& parallel,
    int num_ranks,
    torch::ScalarType dtype = torch::kFloat) {
  Tensor weight;
  run_on_ranks(num_ranks, [&](const WorldOptions& world) {
    const Accelerator accelerator(
        {.master_weights = dtype != torch::kFloat,
         .parallel = parallel,
         .world = world});
    auto net = layer();
    net->to(dtype);
    Adagrad adagrad(net->parameters(), options());
    auto [model, optimizer] = accelerator.prepare(net, adagrad);
    for (int step = 0; step < 3; ++step) {
      const auto x =
          torch::cos(torch::arange(10).view({2, 5}) + step).to(dtype);
      accelerator.backward(model(x).to(torch::kFloat).pow(2).sum());
      optimizer.step();
      optimizer.zero_grad();
    }
    for (const auto& [name, tensor] : accelerator.get_state_dict(model)) {
      if (accelerator.is_main_process() && name == "weight")
        weight = tensor.detach().to(torch::kFloat).clone();
    }
  });
  return weight;
}

template <class Adagrad>
void expect_parity() {
  const Tensor alone = train<Adagrad>({}, 1);
  for (const int stage : {1, 2, 3}) {
    const Tensor sharded = train<Adagrad>(
        {.deepspeed =
             DeepSpeedOptions{.gradient_clipping = 0, .zero_stage = stage}},
        2);
    EXPECT_TRUE(torch::allclose(sharded, alone, 1e-5, 1e-6)) << stage;
  }
}

TEST(AdagradState, OfAFreshOptimizerIsMadeForTheShards) {
  expect_parity<torch::optim::Adagrad>();
  expect_parity<optim::Adagrad>();
}

TEST(AdagradState, HasThePrecisionOfTheMasterWeights) {
  run_on_ranks(1, [](const WorldOptions& world) {
    const Accelerator accelerator({.master_weights = true, .world = world});
    auto net = layer();
    net->to(torch::kBFloat16);
    torch::optim::Adagrad adagrad(net->parameters(), options());
    accelerator.prepare(net, adagrad);
    for (const Tensor& parameter : adagrad.param_groups()[0].params()) {
      const auto& state = static_cast<const torch::optim::AdagradParamState&>(
          *adagrad.state().at(parameter.unsafeGetTensorImpl()));
      EXPECT_EQ(state.step(), 0);
      EXPECT_TRUE(torch::equal(
          state.sum(), torch::full(parameter.sizes(), 0.25, torch::kFloat)));
    }
    EXPECT_EQ(adagrad.state().size(), 2u);
  });
}

TEST(AdagradState, OfAnOptimizerThatHasSteppedIsRefused) {
  run_on_ranks(2, [](const WorldOptions& world) {
    const Accelerator accelerator({.parallel = {.shard = 2}, .world = world});
    auto net = layer();
    torch::optim::Adagrad adagrad(net->parameters(), options());
    net(torch::ones({1, 5})).sum().backward();
    adagrad.step();
    expect_error<ConfigError>(
        [&] { accelerator.prepare(net, adagrad); }, "stepped on");
  });
}

}  // namespace adagrad_state_test
}  // namespace accelerate
