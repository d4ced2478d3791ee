// Programs that call loss.backward() where Accelerator::backward() is meant:
// gradients are averaged all the same.
#include <atomic>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include <accelerate/accelerate.h>

#include "support/expect_error.h"
#include "support/run_on_ranks.h"

namespace accelerate {
namespace plain_backward_test {

using testing::expect_error;
using testing::run_on_ranks;
using torch::Tensor;
using LinearModel = Model<torch::nn::LinearImpl>;

torch::nn::Linear layer(double value = 0, int width = 2) {
  torch::nn::Linear net(torch::nn::LinearOptions(width, width).bias(false));
  const torch::NoGradGuard no_grad;
  net->weight.fill_(value);
  return net;
}

// Each element of the gradient is the rank's number, from 1.
Tensor input(const Accelerator& accelerator, int width = 2) {
  return torch::full(
      {1, width}, accelerator.process_index() + 1, torch::kFloat);
}

// The warnings of all ranks.
class Warnings {
 public:
  [[nodiscard]] Logger logger() {
    return {
        [this](const LogRecord& record) {
          const std::lock_guard lock(mutex_);
          lines_.emplace_back(record.message);
        },
        LogLevel::warning};
  }
  [[nodiscard]] std::vector<std::string> take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(lines_, {});
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> lines_;
};

// DeepSpeed clips to 1 unless told otherwise.
constexpr double kNoClipping = 0;

struct Way {
  std::string name;
  AcceleratorOptions options = {};
};

std::vector<Way> all_ways() {
  ReplicateOptions views, unused, fixed, hook, power;
  views.gradient_as_bucket_view = true;
  unused.find_unused_parameters = true;
  fixed.static_graph = true;
  hook.comm_hook = CommHook::bf16;
  power.comm_hook = CommHook::power_sgd;
  FullyShardedDataParallelOptions by_size{
      .auto_wrap_policy = AutoWrapPolicy::size_based_wrap, .min_num_params = 4};
  FullyShardedDataParallelOptions recomputed = by_size;
  recomputed.activation_checkpointing = true;
  const auto zero = [](int stage) {
    return AcceleratorOptions{
        .parallel = {
            .deepspeed = DeepSpeedOptions{
                .gradient_clipping = kNoClipping, .zero_stage = stage}}};
  };
  return {
      {"replicas"},
      {"views", {.parallel = {.replicate_options = views}}},
      {"unused", {.parallel = {.replicate_options = unused}}},
      {"static_graph", {.parallel = {.replicate_options = fixed}}},
      {"bf16_hook", {.parallel = {.replicate_options = hook}}},
      {"power_sgd", {.parallel = {.replicate_options = power}}},
      {"zero1", zero(1)},
      {"zero2", zero(2)},
      {"zero3", zero(3)},
      {"fully_sharded", {.parallel = {.fully_sharded = by_size}}},
      {"recomputed", {.parallel = {.fully_sharded = recomputed}}},
      {"hybrid", {.parallel = {.replicate = 2, .fully_sharded = by_size}}},
  };
}

// The weight of the last of three layers after `train`, on each rank.
template <class Train>
void expect_weights(const Way& way, int num_ranks, double want, Train&& train) {
  run_on_ranks(num_ranks, [&](const WorldOptions& world) {
    AcceleratorOptions options = way.options;
    options.world = world;
    options.world.logger = Logger([](const LogRecord&) {}, LogLevel::error);
    const Accelerator accelerator(options);
    // The first two layers pass on their input, and stay as they are.
    torch::nn::Sequential net(layer(0.5), layer(0.5), layer());
    torch::optim::SGD sgd({net->parameters().back()}, 1);
    const auto [model, optimizer] = accelerator.prepare(net, sgd);
    train(accelerator, net, model, optimizer);
    const auto full = model.full_parameters();
    const Tensor weight = net->parameters().back();
    EXPECT_TRUE(torch::allclose(weight, torch::full_like(weight, want)))
        << way.name << ": " << weight << ", expected " << want;
  });
}

TEST(PlainBackward, AveragesInEveryWayToTrain) {
  for (const Way& way : all_ways()) {
    const int num_ranks = way.name == "hybrid" ? 4 : 2;
    expect_weights(
        way,
        num_ranks,
        // The mean of 1 to the number of ranks, of two steps.
        -2 * (num_ranks + 1) / 2.0,
        [](const Accelerator& accelerator,
           auto&,
           const auto& model,
           const Optimizer& optimizer) {
          for (int step = 0; step < 2; ++step) {
            model(input(accelerator)).sum().backward();
            optimizer.step();
            optimizer.zero_grad();
          }
        });
  }
}

// The window's gradient is the sum of its micro-steps', whoever runs each
// backward, and averaged once.
TEST(PlainBackward, MayBeMixedWithOthersInAWindow) {
  for (Way way : all_ways()) {
    if (way.name == "power_sgd") continue;
    way.options.gradient_accumulation_steps = 3;
    for (const std::vector<bool>& plain : std::vector<std::vector<bool>>{
             {true, false, false}, {false, false, true}, {true, true, true}}) {
      double want = 0;
      for (const bool each : plain) want -= 1.5 * (each ? 1 : 1.0 / 3);
      if (way.name == "hybrid") want = want / 1.5 * 2.5;
      expect_weights(
          way,
          way.name == "hybrid" ? 4 : 2,
          want,
          [&](const Accelerator& accelerator,
              auto&,
              const auto& model,
              const Optimizer& optimizer) {
            for (const bool each : plain) {
              const auto micro_step = accelerator.accumulate(model);
              const Tensor loss = model(input(accelerator)).sum();
              if (each) {
                loss.backward();
              } else {
                accelerator.backward(loss);
              }
              optimizer.step();
              optimizer.zero_grad();
            }
          });
    }
  }
}

// As in Accelerate's example of accumulate().
TEST(PlainBackward, KeepsAWindowsGradientsAndWarnsThatItDividesNothing) {
  for (const int num_ranks : {1, 2}) {
    Warnings warnings;
    run_on_ranks(num_ranks, [&](WorldOptions world) {
      world.logger = warnings.logger();
      const Accelerator accelerator(
          {.gradient_accumulation_steps = 2, .world = world});
      auto net = layer();
      torch::optim::SGD sgd(net->parameters(), 1);
      const auto [model, optimizer] = accelerator.prepare(net, sgd);
      for (int i = 0; i < 4; ++i) {
        const auto micro_step = accelerator.accumulate(model);
        model(torch::ones({1, 2})).sum().backward();
        optimizer.step();
        optimizer.zero_grad();
      }
      EXPECT_EQ(net->weight[0][0].item<float>(), -4);
    });
    EXPECT_THAT(
        warnings.take(),
        ::testing::ElementsAre(::testing::HasSubstr(
            "the loss is not divided by 2, so that gradients are the sum")));
  }
}

TEST(PlainBackward, IsAnErrorWithFp16) {
  for (const int num_ranks : {1, 2}) {
    run_on_ranks(num_ranks, [](const WorldOptions& world) {
      const Accelerator accelerator(
          {.mixed_precision = Precision::fp16, .world = world});
      auto net = layer();
      const auto model = accelerator.prepare(net);
      expect_error<ConfigError>(
          [&, &model = model] { model(torch::ones({1, 2})).sum().backward(); },
          "fp16 needs a scaled loss: call accelerator.backward(loss)");
      // Gradients that are left nowhere are the program's own business.
      const Tensor x = torch::ones({1, 2}).requires_grad_();
      EXPECT_TRUE(torch::autograd::grad({model(x).sum()}, {x})[0].defined());
    });
  }
}

TEST(PlainBackward, StaysOnItsRankInsideNoSync) {
  run_on_ranks(2, [](const WorldOptions& world) {
    const Accelerator accelerator({.world = world});
    auto net = layer();
    const auto model = accelerator.prepare(net);
    {
      const auto scope = accelerator.no_sync(model);
      // On one rank only: nothing may wait for the other.
      if (accelerator.is_main_process())
        model(input(accelerator)).sum().backward();
    }
    EXPECT_EQ(net->weight.grad().defined(), accelerator.is_main_process());
    net->zero_grad();
    net(input(accelerator)).sum().backward();
    EXPECT_EQ(net->weight.grad()[0][0].item<float>(), 1.5F);
  });
}

TEST(PlainBackward, AveragesGradientsOfBothModelsOfAGan) {
  run_on_ranks(2, [](const WorldOptions& world) {
    const Accelerator accelerator({.world = world});
    auto generator_net = layer(0.5), critic_net = layer(0.5);
    torch::optim::SGD generator_sgd(generator_net->parameters(), 1);
    torch::optim::SGD critic_sgd(critic_net->parameters(), 1);
    auto [generator, critic, generator_optimizer, critic_optimizer] =
        accelerator.prepare(
            generator_net, critic_net, generator_sgd, critic_sgd);
    const Tensor fake = generator(input(accelerator));
    critic(fake.detach()).sum().backward();
    // Twice half of 1 and of 2, on average.
    EXPECT_EQ(critic_net->weight.grad()[0][0].item<float>(), 1.5F);
    EXPECT_FALSE(generator_net->weight.grad().defined());
    critic_optimizer.zero_grad();
    critic(fake).sum().backward();
    EXPECT_EQ(generator_net->weight.grad()[0][0].item<float>(), 1.5F);
    EXPECT_EQ(critic_net->weight.grad()[0][0].item<float>(), 1.5F);
  });
}

TEST(PlainBackward, AveragesWhileRanksJoin) {
  run_on_ranks(2, [](const WorldOptions& world) {
    const Accelerator accelerator({.world = world});
    auto net = layer();
    torch::optim::SGD sgd(net->parameters(), 1);
    const auto [model, optimizer] = accelerator.prepare(net, sgd);
    accelerator.join_uneven_inputs([&, &model = model, &optimizer = optimizer] {
      for (int i = 0; i <= accelerator.process_index(); ++i) {
        model(input(accelerator)).sum().backward();
        optimizer.step();
        optimizer.zero_grad();
      }
    });
    // The mean of 1 and 2, then 2 divided by both ranks.
    EXPECT_EQ(net->weight[0][0].item<float>(), -2.5F);
  });
}

// A gradient that the program writes is the program's.
TEST(PlainBackward, LeavesGradientsAloneThatNoBackwardComputed) {
  run_on_ranks(2, [](const WorldOptions& world) {
    const Accelerator accelerator({.world = world});
    auto net = layer();
    torch::optim::SGD sgd(net->parameters(), 1);
    const auto [model, optimizer] = accelerator.prepare(net, sgd);
    net->weight.mutable_grad() = torch::full({2, 2}, 3.F);
    optimizer.step();
    EXPECT_EQ(net->weight[0][0].item<float>(), -3);
    const auto gradient = torch::autograd::grad(
        {net(input(accelerator)).sum()}, {net->weight})[0];
    EXPECT_EQ(gradient[0][0].item<float>(), accelerator.process_index() + 1);
  });
}

// A caught failure leaves nothing half done.
TEST(PlainBackward, MayFailAndBeRepeated) {
  for (const Way& way : all_ways()) {
    if (way.name == "hybrid" || way.name == "power_sgd") continue;
    expect_weights(
        way,
        2,
        -1.5,
        [](const Accelerator& accelerator,
           auto&,
           const auto& model,
           const Optimizer& optimizer) {
          Tensor x = input(accelerator).requires_grad_();
          x.register_hook([](const Tensor&) -> Tensor {
            throw std::runtime_error("stop");
          });
          EXPECT_THROW(model(x).sum().backward(), std::runtime_error);
          optimizer.zero_grad();
          model.zero_grad();
          model(input(accelerator)).sum().backward();
          optimizer.step();
        });
  }
}

// A gradient penalty needs gradients of gradients.
TEST(PlainBackward, TakesAGradientPenalty) {
  for (const Way& way : all_ways()) {
    if (way.name == "hybrid" || way.name == "power_sgd" ||
        way.name == "static_graph" || way.name == "recomputed")
      continue;
    std::vector<double> sums(2);
    run_on_ranks(2, [&](const WorldOptions& world) {
      AcceleratorOptions options = way.options;
      options.world = world;
      const Accelerator accelerator(options);
      torch::nn::Sequential net(layer(0.25), torch::nn::Tanh(), layer(0.5));
      torch::optim::SGD sgd(net->parameters(), 1);
      const auto [model, optimizer] = accelerator.prepare(net, sgd);
      const Tensor x = input(accelerator).requires_grad_();
      const Tensor out = model(x).sum();
      const auto gradient = torch::autograd::grad(
          {out}, {x}, {}, std::nullopt, /*create_graph=*/true)[0];
      (out + gradient.pow(2).sum()).backward();
      optimizer.step();
      const auto full = model.full_parameters();
      double& sum = sums[static_cast<std::size_t>(accelerator.process_index())];
      for (const Tensor& parameter : net->parameters())
        sum += parameter.sum().item<double>();
    });
    EXPECT_EQ(sums[0], sums[1]) << way.name;
    // In one process, of both ranks' samples.
    torch::nn::Sequential net(layer(0.25), torch::nn::Tanh(), layer(0.5));
    torch::optim::SGD sgd(net->parameters(), 1);
    const Tensor x = torch::tensor({{1.F, 1.F}, {2.F, 2.F}}).requires_grad_();
    const Tensor out = net->forward(x).sum();
    const auto gradient = torch::autograd::grad(
        {out}, {x}, {}, std::nullopt, /*create_graph=*/true)[0];
    ((out + gradient.pow(2).sum()) / 2).backward();
    sgd.step();
    double want = 0;
    for (const Tensor& parameter : net->parameters())
      want += parameter.sum().item<double>();
    EXPECT_NEAR(sums[0], want, way.name == "bf16_hook" ? 2e-2 : 1e-5)
        << way.name;
  }
}

}  // namespace plain_backward_test
}  // namespace accelerate
