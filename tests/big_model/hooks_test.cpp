#include <accelerate/hooks.h>

#include <memory>
#include <string>
#include <vector>

#include <accelerate/empty_weights.h>
#include <accelerate/error.h>
#include <accelerate/layerwise_casting.h>

#include "support/expect_error.h"

namespace accelerate {
namespace hooks_test {

using ::testing::ElementsAre;

struct Recorder : ModelHook {
  explicit Recorder(std::vector<std::string>& seen, std::string name = "")
      : seen_(seen), name_(std::move(name)) {}

  void init_hook(torch::nn::Module&) override { note("init"); }
  std::vector<at::Tensor> pre_forward(
      torch::nn::Module&,
      std::vector<at::Tensor> inputs) override {
    note("pre");
    inputs[0] = inputs[0] + 1;
    return inputs;
  }
  std::vector<at::Tensor> post_forward(
      torch::nn::Module&,
      std::vector<at::Tensor> outputs) override {
    note("post");
    outputs[0] = outputs[0] * 2;
    return outputs;
  }
  void detach_hook(torch::nn::Module&) override { note("detach"); }

 private:
  void note(const char* what) { seen_.push_back(name_ + what); }

  std::vector<std::string>& seen_;
  std::string name_;
};

TEST(Hooks, ChangeInputsAndOutputsOfAnUnmodifiedModule) {
  std::vector<std::string> seen;
  torch::nn::Linear linear(3, 2);
  const torch::Tensor x = torch::rand({4, 3});
  const torch::Tensor expected = linear(x + 1) * 2;
  add_hook_to_module(*linear, std::make_shared<Recorder>(seen));
  EXPECT_TRUE(torch::allclose(linear(x), expected));
  remove_hook_from_module(*linear);
  EXPECT_TRUE(torch::allclose(linear(x + 1) * 2, expected));
  EXPECT_EQ(hook_of(*linear), nullptr);
  EXPECT_THAT(seen, ElementsAre("init", "pre", "post", "detach"));
}

struct MultiplierImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) {
    return torch::matmul(x, weight);
  }
  torch::Tensor weight = register_parameter("weight", torch::ones({3, 2}));
  torch::Tensor bias = register_parameter("bias", torch::ones({2}));
};
TORCH_MODULE(Multiplier);

// Notes whether the module exists when it is called.
struct Watcher : ModelHook {
  std::vector<at::Tensor> post_forward(
      torch::nn::Module&,
      std::vector<at::Tensor> outputs) override {
    saw_module = !module.expired();
    return outputs;
  }
  std::weak_ptr<torch::nn::Module> module;
  bool saw_module = false;
};

// The program might add a bias to the product, so that the hook is called when
// it uses the result.
TEST(Hooks, HoldTheModuleUntilItsResultIsUsed) {
  const auto hook = std::make_shared<Watcher>();
  torch::Tensor result;
  {
    Multiplier multiplier;
    hook->module = multiplier.ptr();
    add_hook_to_module(*multiplier, hook);
    result = multiplier(torch::ones({2, 2, 3}));
    EXPECT_FALSE(hook->saw_module);
  }
  EXPECT_TRUE(torch::equal(result + 0, torch::full({2, 2, 2}, 3.F)));
  EXPECT_TRUE(hook->saw_module);
  EXPECT_TRUE(hook->module.expired());
}

TEST(Hooks, AreChainedOrReplaced) {
  std::vector<std::string> seen;
  torch::nn::Linear linear(3, 2);
  add_hook_to_module(*linear, std::make_shared<Recorder>(seen, "a "));
  add_hook_to_module(
      *linear, std::make_shared<Recorder>(seen, "b "), /*append=*/true);
  seen.clear();
  linear(torch::rand({1, 3}));
  EXPECT_THAT(seen, ElementsAre("a pre", "b pre", "a post", "b post"));
  add_hook_to_module(*linear, std::make_shared<Recorder>(seen, "c "));
  seen.clear();
  linear(torch::rand({1, 3}));
  EXPECT_THAT(seen, ElementsAre("c pre", "c post"));
}

TEST(Hooks, AreRefusedForModulesWithoutTensors) {
  std::vector<std::string> seen;
  torch::nn::ReLU relu;
  testing::expect_error<ConfigError>(
      [&] { add_hook_to_module(*relu, std::make_shared<Recorder>(seen)); },
      "ReLU");
}

TEST(Hooks, LetGradientsPass) {
  std::vector<std::string> seen;
  torch::nn::Linear linear(2, 1);
  add_hook_to_module(*linear, std::make_shared<Recorder>(seen));
  const torch::Tensor x = torch::ones({1, 2});
  linear(x).sum().backward();
  EXPECT_TRUE(torch::allclose(linear->weight.grad(), torch::full({1, 2}, 4.0)));
}

TEST(LayerwiseCasting, StoresInOneDtypeAndComputesInAnother) {
  torch::nn::Sequential net(
      torch::nn::Linear(4, 4),
      torch::nn::LayerNorm(torch::nn::LayerNormOptions({4})),
      torch::nn::Linear(4, 4));
  attach_layerwise_casting_hooks(
      *net,
      torch::kHalf,
      torch::kFloat,
      {.skip_modules_pattern = {"^2$"}, .skip_modules_classes = {"LayerNorm"}});
  EXPECT_EQ(net[0]->parameters()[0].scalar_type(), torch::kHalf);
  EXPECT_EQ(net[1]->parameters()[0].scalar_type(), torch::kFloat);
  EXPECT_EQ(net[2]->parameters()[0].scalar_type(), torch::kFloat);
  EXPECT_EQ(net->forward(torch::rand({2, 4})).scalar_type(), torch::kFloat);
}

TEST(DeviceScope, MovesParametersAndLeavesBuffersUnlessAsked) {
  const auto make = [] { return torch::nn::BatchNorm1d(4); };
  const auto only_parameters = init_empty_weights(make, false);
  EXPECT_TRUE(only_parameters->weight.is_meta());
  EXPECT_FALSE(only_parameters->running_mean.is_meta());
  EXPECT_EQ(only_parameters->running_var.sum().item<float>(), 4);
  const auto all = init_empty_weights(make, true);
  EXPECT_TRUE(all->running_mean.is_meta());
}

// A module with buffers made of values, as constructors make them.
struct NormalizeImpl : torch::nn::Module {
  NormalizeImpl() {
    const std::vector<float> given{0.1F, 0.2F};
    mean = register_buffer("mean", torch::tensor(given).view({1, 2}));
    std = register_buffer("std", torch::tensor({1.F, 2.F}));
    table = register_buffer("table", torch::tensor({{1, 2}, {3, 4}}));
    rate = torch::tensor({0.25, 0.5})[1].item<double>();
    weight = register_parameter("weight", torch::tensor({3.F, 4.F}));
    zeros = register_buffer("zeros", torch::zeros({2}, torch::kCPU));
  }
  torch::Tensor mean, std, table, weight, zeros;
  double rate = 0;
};
TORCH_MODULE(Normalize);

TEST(DeviceScope, LetsConstructorsReadTensorsOfGivenValues) {
  const auto made = init_empty_weights([] { return Normalize(); }, true);
  EXPECT_EQ(made->rate, 0.5);
  for (const torch::Tensor& each :
       {made->mean, made->std, made->table, made->weight, made->zeros})
    EXPECT_TRUE(each.is_meta());
  EXPECT_EQ(made->table.sizes(), at::IntArrayRef({2, 2}));
  EXPECT_EQ(made->table.scalar_type(), torch::kLong);
  const auto kept = init_empty_weights([] { return Normalize(); }, false);
  EXPECT_TRUE(kept->weight.is_meta());
  EXPECT_TRUE(kept->mean.equal(torch::tensor({{0.1F, 0.2F}})));
  const auto here =
      init_on_device(torch::kCPU, [] { return Normalize(); }, true);
  EXPECT_TRUE(here->std.equal(torch::tensor({1.F, 2.F})));
  EXPECT_TRUE(here->weight.equal(torch::tensor({3.F, 4.F})));
}

TEST(DeviceScope, LeavesTensorsOfGivenValuesWhereTheyAre) {
  const EmptyWeightsScope scope(true);
  EXPECT_TRUE(torch::zeros({2}).is_meta());
  EXPECT_EQ(torch::tensor({1.F, 2.F}).sum().item<float>(), 3);
  EXPECT_EQ(torch::tensor(std::vector<int>{1, 2}).sum().item<int>(), 3);
  EXPECT_EQ(torch::tensor(3.F).item<float>(), 3);
  EXPECT_TRUE(torch::full({2}, 3, torch::kCPU).is_meta());
  EXPECT_TRUE(torch::rand({2}, torch::kCPU).is_meta());
}

TEST(DeviceScope, EndsWithAnException) {
  EXPECT_THROW(
      init_empty_weights(
          []() -> torch::nn::Linear { throw std::runtime_error("no model"); }),
      std::runtime_error);
  EXPECT_FALSE(torch::nn::Linear(2, 2)->weight.is_meta());
}

}  // namespace hooks_test
}  // namespace accelerate
