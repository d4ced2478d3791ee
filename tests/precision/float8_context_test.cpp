// Float8 with context parallelism: ranks cast their positions of a sequence as
// one process casts all positions.
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include <gtest/gtest.h>

#include <accelerate/accelerate.h>
#include <accelerate/fp8.h>

#include "support/run_on_ranks.h"

namespace accelerate {
namespace float8_context_test {

namespace nn = torch::nn;
using testing::run_on_ranks;
using torch::Tensor;

constexpr std::int64_t kBatch = 2, kLength = 32, kWidth = 32;

using Recipes = std::vector<std::pair<std::string, AORecipeKwargs>>;

Recipes recipes() {
  const auto named = [](const char* name) {
    return AORecipeKwargs{
        .config = Float8LinearConfig::from_recipe_name(name),
        .module_filter_func = [](const std::string&, const nn::Module&) {
          return true;
        }};
  };
  return {
      {"tensorwise", named("tensorwise")},
      {"rowwise", named("rowwise")},
      {"rowwise_with_gw_hp", named("rowwise_with_gw_hp")}};
}

Tensor normal(at::IntArrayRef sizes, std::uint64_t seed) {
  return torch::randn(sizes, at::detail::createCPUGenerator(seed));
}

nn::Sequential make_net() {
  nn::Sequential net(
      nn::Linear(kWidth, kWidth), nn::GELU(), nn::Linear(kWidth, kWidth));
  const torch::NoGradGuard no_grad;
  std::uint64_t seed = 1;
  for (Tensor& parameter : net->parameters())
    parameter.copy_(normal(parameter.sizes(), seed++) * 0.2);
  return net;
}

// The largest values are at the first position, which only one rank has.
Tensor sequence() {
  Tensor x = normal({kBatch, kLength, kWidth}, 10);
  x.select(1, 0).mul_(5.3);
  return x;
}

struct Result {
  Tensor output;  ///< of all positions, in order
  std::vector<Tensor> gradients;
};

Result compute(int num_ranks, const AORecipeKwargs& recipe) {
  Result result;
  run_on_ranks(num_ranks, [&](const WorldOptions& world) {
    const Accelerator accelerator(
        {.mixed_precision = Precision::fp8,
         .fp8_recipe = recipe,
         .autocast = {.enabled = false},
         .parallel = {.context = num_ranks},
         .world = world});
    nn::Sequential net = make_net();
    torch::optim::SGD sgd(net->parameters(), 0.1);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    Tensor x = sequence();
    const auto scope = accelerator.maybe_context_parallel({x}, {1});
    const Tensor y = model(x);
    accelerator.backward(
        scope.mean(y.square().sum(), torch::tensor(y.numel())));
    Tensor whole = torch::zeros({kBatch, kLength, kWidth});
    whole.index_copy_(1, scope.positions(), y.detach());
    accelerator.world().group().all_reduce(whole);
    if (*world.rank != 0) return;
    result.output = whole;
    for (const Tensor& parameter : net->parameters())
      result.gradients.push_back(parameter.grad().clone());
  });
  return result;
}

TEST(Float8Context, CastsPositionsWithTheScalesOfTheWholeSequence) {
  for (const auto& [name, recipe] : recipes()) {
    const Result expected = compute(1, recipe);
    for (const int num_ranks : {2, 4}) {
      SCOPED_TRACE(name + " on " + std::to_string(num_ranks));
      const Result found = compute(num_ranks, recipe);
      EXPECT_TRUE(torch::equal(found.output, expected.output));
      for (std::size_t i = 0; i < expected.gradients.size(); ++i) {
        // Sums over positions are in a different order.
        EXPECT_TRUE(torch::allclose(
            found.gradients[i], expected.gradients[i], 1e-5, 1e-7))
            << i;
      }
    }
  }
}

// Otherwise ranks would wait for others that do not compute anything.
TEST(Float8Context, AsksNoRankOutsideTheScope) {
  run_on_ranks(2, [&](const WorldOptions& world) {
    const Accelerator accelerator(
        {.mixed_precision = Precision::fp8,
         .fp8_recipe = recipes()[0].second,
         .autocast = {.enabled = false},
         .parallel = {.context = 2},
         .world = world});
    nn::Sequential net = make_net();
    auto model = accelerator.prepare(net);
    const torch::NoGradGuard no_grad;
    if (*world.rank == 0) static_cast<void>(model(sequence()));
    accelerator.wait_for_everyone();
  });
}

}  // namespace float8_context_test
}  // namespace accelerate
