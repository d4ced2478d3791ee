#include <accelerate/accelerate.h>

#include "support/expect_error.h"

namespace accelerate {
namespace fused_test {

using testing::expect_error;
using torch::Tensor;

// Parameters with unusual layouts and the same values each time.
std::vector<Tensor> awkward_parameters(torch::ScalarType dtype) {
  const auto values = [&](std::vector<std::int64_t> shape, double phase) {
    std::int64_t n = 1;
    for (const auto size : shape) n *= size;
    return torch::sin(torch::arange(n, torch::kDouble) + phase)
        .view(shape)
        .to(dtype);
  };
  std::vector<Tensor> parameters{
      values({3, 4}, 0),
      values({}, 1),
      torch::empty({0, 5}, dtype),
      values({4, 6}, 2).t(),              // dense, in another order
      values({5, 8}, 3).narrow(1, 2, 3),  // a slice: not dense
      values({2, 3, 2, 2}, 4).contiguous(at::MemoryFormat::ChannelsLast),
      values({7}, 5)};  // never gets a gradient
  for (Tensor& parameter : parameters) parameter.requires_grad_();
  return parameters;
}

template <class Optimizer, class Options>
std::vector<Tensor>
train(const Options& options, torch::ScalarType dtype, int steps) {
  std::vector<Tensor> parameters = awkward_parameters(dtype);
  const std::vector<Tensor> first(parameters.begin(), parameters.begin() + 3);
  const std::vector<Tensor> second(parameters.begin() + 3, parameters.end());
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(first);
  groups.emplace_back(second, std::make_unique<Options>(options));
  Optimizer optimizer(groups, options);
  for (int step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    Tensor loss = torch::zeros({}, dtype);
    for (std::size_t i = 0; i + 1 < parameters.size(); ++i) {
      // One parameter joins late, so that steps differ within a group.
      if (i == 0 && step < 2) continue;
      loss = loss + (parameters[i] * (0.5 + double(i)) - 1).square().sum();
    }
    loss.backward();
    // The gradient's memory order differs from its parameter's.
    parameters[3].mutable_grad() =
        parameters[3].grad().clone(at::MemoryFormat::Contiguous);
    optimizer.step();
    for (auto& group : optimizer.param_groups())
      group.options().set_lr(group.options().get_lr() * 0.9);
  }
  return parameters;
}

template <class Ours, class Theirs, class Options>
void expect_same(const std::vector<Options>& all) {
  for (const auto dtype : {torch::kDouble, torch::kFloat}) {
    const double tolerance = dtype == torch::kDouble ? 1e-10 : 2e-5;
    for (const Options& options : all) {
      const auto ours = train<Ours>(options, dtype, 8);
      const auto theirs = train<Theirs>(options, dtype, 8);
      for (std::size_t i = 0; i < ours.size(); ++i) {
        EXPECT_TRUE(torch::allclose(ours[i], theirs[i], tolerance, tolerance))
            << "parameter " << i << "\n"
            << ours[i] << "\n"
            << theirs[i];
      }
      // Equality proves nothing unless the fixture trains.
      EXPECT_FALSE(torch::allclose(ours[0], awkward_parameters(dtype)[0]));
    }
  }
}

TEST(FusedOptimizers, AdamWMatchesLibTorch) {
  using Options = torch::optim::AdamWOptions;
  expect_same<optim::AdamW, torch::optim::AdamW, Options>(
      {Options(0.1),
       Options(0.01).weight_decay(0.3).betas({0.8, 0.9}),
       Options(0.1).amsgrad(true).eps(1e-4)});
}

TEST(FusedOptimizers, AdamMatchesLibTorch) {
  using Options = torch::optim::AdamOptions;
  expect_same<optim::Adam, torch::optim::Adam, Options>(
      {Options(0.1),
       Options(0.01).weight_decay(0.3).betas({0.8, 0.9}),
       Options(0.1).amsgrad(true).eps(1e-4)});
}

TEST(FusedOptimizers, SgdMatchesLibTorch) {
  using Options = torch::optim::SGDOptions;
  expect_same<optim::SGD, torch::optim::SGD, Options>(
      {Options(0.01),
       Options(0.01).weight_decay(0.1),
       Options(0.01).momentum(0.9),
       Options(0.01).momentum(0.8).dampening(0.3),
       Options(0.01).momentum(0.9).nesterov(true)});
}

TEST(FusedOptimizers, AdagradMatchesLibTorch) {
  using Options = torch::optim::AdagradOptions;
  expect_same<optim::Adagrad, torch::optim::Adagrad, Options>(
      {Options(0.1),
       Options(0.1).lr_decay(0.1).weight_decay(0.01),
       Options(0.1).initial_accumulator_value(0.5).eps(1e-3)});
}

TEST(FusedOptimizers, LoadStateThatLibTorchSaved) {
  const auto parameter = [] { return torch::ones({3}).requires_grad_(); };
  const auto run =
      [](torch::optim::Optimizer& optimizer, const Tensor& p, int steps) {
        for (int i = 0; i < steps; ++i) {
          optimizer.zero_grad();
          (p * torch::tensor({1., 2., 3.})).square().sum().backward();
          optimizer.step();
        }
      };
  Tensor p = parameter(), q = parameter();
  torch::optim::AdamW theirs({p}, torch::optim::AdamWOptions(0.1));
  run(theirs, p, 3);
  std::stringstream saved;
  torch::save(theirs, saved);
  optim::AdamW ours({q}, torch::optim::AdamWOptions(0.1));
  torch::load(static_cast<torch::optim::Optimizer&>(ours), saved);
  {
    torch::NoGradGuard no_grad;
    q.copy_(p);
  }
  run(theirs, p, 3);
  run(ours, q, 3);
  EXPECT_TRUE(torch::allclose(p, q, 1e-6, 1e-7));
}

TEST(FusedOptimizers, ReturnTheClosuresLoss) {
  Tensor p = torch::ones({2}).requires_grad_();
  optim::SGD sgd(std::vector<Tensor>{p}, torch::optim::SGDOptions(0.5));
  const Tensor loss = sgd.step([&] {
    sgd.zero_grad();
    Tensor value = p.sum();
    value.backward();
    return value;
  });
  EXPECT_EQ(loss.item<double>(), 2);
  EXPECT_EQ(p[0].item<double>(), 0.5);
}

TEST(FusedOptimizers, RefuseSparseGradients) {
  torch::nn::Embedding embedding(
      torch::nn::EmbeddingOptions(4, 2).sparse(true));
  optim::SGD sgd(embedding->parameters(), torch::optim::SGDOptions(0.5));
  embedding(torch::tensor({1, 2})).sum().backward();
  expect_error<ConfigError>([&] { sgd.step(); }, "sparse gradient");
}

WorldOptions alone() { return {.rank = 0, .size = 1, .device = at::kCPU}; }

TEST(MasterWeights, KeepUpdatesThatBf16WouldRoundAway) {
  AcceleratorOptions plain{.world = alone()}, masters = plain, megatron = plain;
  masters.master_weights = true;
  megatron.parallel.megatron_lm = MegatronLMOptions{
      .gradient_clipping = 0, .use_precision_aware_optimizer = true};
  for (const auto& [options, master_weights] :
       {std::pair(plain, false),
        std::pair(masters, true),
        std::pair(megatron, true)}) {
    Accelerator accelerator(options);
    torch::nn::Linear net(torch::nn::LinearOptions(1, 1).bias(false));
    {
      torch::NoGradGuard no_grad;
      net->weight.fill_(1);
    }
    net->to(torch::kBFloat16);
    optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(1.0 / 1024));
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    const auto x = torch::ones({1, 1}, torch::kBFloat16);
    for (int step = 0; step < 64; ++step) {
      accelerator.backward(model(x).sum());
      EXPECT_DOUBLE_EQ(
          accelerator.clip_grad_norm_(model, 10).item<double>(), 1);
      optimizer.step();
      optimizer.zero_grad();
    }
    // 1/1024 is below half a bf16 step at 1.
    EXPECT_EQ(net->weight.item<double>(), master_weights ? 1 - 64.0 / 1024 : 1);
    EXPECT_EQ(net->weight.scalar_type(), torch::kBFloat16);
  }
}

TEST(MasterWeights, TrainAHalfPrecisionModelWithScaledLosses) {
  Accelerator accelerator(
      {.mixed_precision = Precision::fp16,
       .grad_scaler = {.init_scale = 1024},
       .master_weights = true,
       .world = alone()});
  torch::nn::Linear net(torch::nn::LinearOptions(1, 1).bias(false));
  {
    torch::NoGradGuard no_grad;
    net->weight.fill_(1);
  }
  net->to(torch::kHalf);
  torch::optim::SGD sgd(net->parameters(), 1);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  // Without scaling this gradient is 0 in fp16.
  const auto loss = [&model = model](double factor) {
    return model(torch::ones({1, 1}, torch::kHalf)).sum() * factor;
  };
  accelerator.backward(loss(1e-8));
  optimizer.step();
  EXPECT_GT(
      optimizer.inner().param_groups()[0].params()[0].grad().item<double>(), 0);
  optimizer.zero_grad();
  accelerator.backward(loss(INFINITY));
  optimizer.step();
  EXPECT_TRUE(optimizer.step_was_skipped());
  EXPECT_EQ(accelerator.gradient_state().scaler()->get_scale(), 512);
}

}  // namespace fused_test
}  // namespace accelerate
