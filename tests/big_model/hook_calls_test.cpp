#include <gmock/gmock.h>

#include <accelerate/empty_weights.h>
#include <accelerate/error.h>
#include <accelerate/hooks.h>
#include <accelerate/layerwise_casting.h>

#include "support/expect_error.h"

namespace accelerate::hook_calls_test {

namespace nn = torch::nn;
using testing::expect_error;
using torch::Tensor;

struct AddToInput : ModelHook {
  std::vector<Tensor> pre_forward(
      nn::Module& /*module*/,
      std::vector<Tensor> inputs) override {
    for (Tensor& each : inputs) each = each + 1;
    return inputs;
  }
};

struct AddToOutput : ModelHook {
  std::vector<Tensor> post_forward(
      nn::Module& /*module*/,
      std::vector<Tensor> outputs) override {
    for (Tensor& each : outputs) each = each + 1;
    return outputs;
  }
};

struct CountingHook : ModelHook {
  void init_hook(nn::Module& /*module*/) override { ++num_inits; }
  void detach_hook(nn::Module& /*module*/) override { ++num_detaches; }
  [[nodiscard]] bool no_grad() const override { return true; }
  int num_inits = 0;
  int num_detaches = 0;
};

class Hooks : public ::testing::Test {
 protected:
  nn::Linear linear_{3, 4};
  Tensor x_ = torch::rand({2, 3});
};

TEST_F(Hooks, ChangeInputsAndOutputs) {
  const Tensor at_next = linear_(x_ + 1);
  const Tensor expected = linear_(x_);
  add_hook_to_module(*linear_, std::make_shared<AddToInput>());
  EXPECT_TRUE(linear_(x_).equal(at_next));
  // Adding a hook again replaces it.
  add_hook_to_module(*linear_, std::make_shared<AddToInput>());
  EXPECT_TRUE(linear_(x_).equal(at_next));
  add_hook_to_module(*linear_, std::make_shared<AddToOutput>(), true);
  EXPECT_TRUE(linear_(x_).equal(at_next + 1));
  remove_hook_from_module(*linear_);
  EXPECT_EQ(hook_of(*linear_), nullptr);
  EXPECT_TRUE(linear_(x_).equal(expected));
}

TEST_F(Hooks, AreChained) {
  const Tensor twice = linear_((x_ + 1) + 1);
  const auto one = std::make_shared<AddToInput>();
  add_hook_to_module(
      *linear_,
      std::make_shared<SequentialHook>(
          std::vector<std::shared_ptr<ModelHook>>{one, one}));
  EXPECT_TRUE(linear_(x_).equal(twice));
}

TEST_F(Hooks, AreToldWhenTheyAreAddedAndRemoved) {
  const auto hook = std::make_shared<CountingHook>();
  add_hook_to_module(*linear_, hook);
  EXPECT_EQ(hook->num_inits, 1);
  EXPECT_FALSE(linear_(x_).requires_grad());
  remove_hook_from_submodules(*linear_);
  EXPECT_EQ(hook->num_detaches, 1);
  EXPECT_TRUE(linear_(x_).requires_grad());
}

TEST_F(Hooks, LetGradientsThrough) {
  linear_(x_ + 1).sum().backward();
  const Tensor expected = linear_->weight.grad().clone();
  linear_->zero_grad();
  add_hook_to_module(*linear_, std::make_shared<AddToInput>());
  linear_(x_).sum().backward();
  EXPECT_TRUE(linear_->weight.grad().equal(expected));
}

TEST_F(Hooks, RefuseModulesWithoutTensors) {
  nn::ReLU relu;
  expect_error<ConfigError>(
      [&] { add_hook_to_module(*relu, std::make_shared<AddToInput>()); },
      "[big_model]");
}

struct MlpImpl : nn::Module {
  Tensor forward(const Tensor& x) { return out(norm(torch::relu(in(x)))); }
  nn::Linear in = register_module("in", nn::Linear(4, 4));
  nn::LayerNorm norm =
      register_module("norm", nn::LayerNorm(nn::LayerNormOptions({4})));
  nn::Linear out = register_module("out", nn::Linear(4, 4));
};
TORCH_MODULE(Mlp);

TEST(LayerwiseCasting, StoresInOneDtypeAndComputesInAnother) {
  Mlp net;
  const Tensor x = torch::rand({2, 4});
  const torch::NoGradGuard no_grad;
  for (auto* layer : {&net->in, &net->out}) {
    for (auto& parameter : (*layer)->parameters())
      parameter.copy_(parameter.to(torch::kBFloat16));
  }
  const Tensor expected = net(x);
  attach_layerwise_casting_hooks(*net, torch::kBFloat16, torch::kFloat);
  EXPECT_EQ(net->in->weight.scalar_type(), torch::kBFloat16);
  EXPECT_EQ(net->norm->weight.scalar_type(), torch::kFloat);
  EXPECT_TRUE(net(x).equal(expected));
  remove_hook_from_submodules(*net);
  EXPECT_EQ(net->in->weight.scalar_type(), torch::kBFloat16);
}

TEST(LayerwiseCasting, LeavesOutWhatItIsTold) {
  Mlp net;
  attach_layerwise_casting_hooks(
      *net,
      torch::kBFloat16,
      torch::kFloat,
      {.skip_modules_pattern = {"^in$"}, .non_blocking = true});
  EXPECT_EQ(net->in->weight.scalar_type(), torch::kFloat);
  EXPECT_EQ(net->out->weight.scalar_type(), torch::kBFloat16);
  Mlp other;
  attach_layerwise_casting_hooks(
      *other,
      torch::kBFloat16,
      torch::kFloat,
      {.skip_modules_classes = {"Linear"}});
  EXPECT_EQ(other->in->weight.scalar_type(), torch::kFloat);
}

TEST(LayerwiseCasting, RefusesOtherDtypesAndExpressions) {
  Mlp net;
  expect_error<ConfigError>(
      [&] { attach_layerwise_casting_hooks(*net, torch::kInt, torch::kFloat); },
      "[big_model]");
  expect_error<ConfigError>(
      [&] {
        attach_layerwise_casting_hooks(
            *net,
            torch::kBFloat16,
            torch::kFloat,
            {.skip_modules_pattern = {"("}});
      },
      "[big_model]");
}

struct WithBufferImpl : nn::Module {
  nn::Linear linear = register_module("linear", nn::Linear(2, 2));
  Tensor buffer = register_buffer("buffer", torch::ones({3}));
};
TORCH_MODULE(WithBuffer);

TEST(EmptyWeightsScope, LeavesBuffersUnlessAsked) {
  const auto with = init_empty_weights([] { return WithBuffer(); });
  EXPECT_TRUE(with->linear->weight.is_meta());
  EXPECT_TRUE(with->buffer.equal(torch::ones({3})));
  const auto without =
      init_empty_weights([] { return WithBuffer(); }, /*include_buffers=*/true);
  EXPECT_TRUE(without->buffer.is_meta());
  EXPECT_FALSE(nn::Linear(2, 2)->weight.is_meta());
}

// Some layers initialise a weight with an operator after it has moved to the
// meta device.
TEST(EmptyWeightsScope, DescribesEveryKindOfLayer) {
  const auto check = [](const nn::Module& module) {
    for (const auto& item : module.named_parameters())
      EXPECT_TRUE(item.value().is_meta()) << module.name() << " " << item.key();
  };
  const auto linear = init_empty_weights([] { return nn::Linear(3, 3); });
  check(*linear);
  const auto embedding = init_empty_weights([] { return nn::Embedding(5, 3); });
  check(*embedding);
  const auto convolution =
      init_empty_weights([] { return nn::Conv2d(nn::Conv2dOptions(2, 3, 3)); });
  check(*convolution);
  const auto lstm = init_empty_weights([] { return nn::LSTM(3, 4); });
  check(*lstm);
  const auto attention =
      init_empty_weights([] { return nn::MultiheadAttention(4, 2); });
  check(*attention);
  const auto transformer = init_empty_weights([] {
    return nn::TransformerEncoderLayer(
        nn::TransformerEncoderLayerOptions(4, 2));
  });
  check(*transformer);
  const auto norm = init_empty_weights([] { return nn::BatchNorm2d(4); });
  check(*norm);
}

TEST(EmptyWeightsScope, EndsWhenAnErrorIsThrown) {
  EXPECT_THROW(
      init_empty_weights([]() -> WithBuffer { throw std::runtime_error("x"); }),
      std::runtime_error);
  EXPECT_FALSE(nn::Linear(2, 2)->weight.is_meta());
}

}  // namespace accelerate::hook_calls_test
