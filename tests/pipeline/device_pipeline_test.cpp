// Stages on devices that NCCL connects.
#include <atomic>
#include <string>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <accelerate/accelerate.h>
#include <accelerate/error.h>
#include <accelerate/prepare_pippy.h>

#include "support/expect_error.h"
#include "support/nccl_ranks.h"
#include "support/pretend_device.h"

namespace accelerate {
namespace device_pipeline_test {

using at::Tensor;
using testing::expect_error;
using testing::run_on_nccl_ranks;

Accelerator accelerator_of(const WorldOptions& world) {
  return Accelerator({.parallel = {.pipeline = *world.size}, .world = world});
}

Tensor sum_of(const Tensor& output, const Tensor&) { return output.sum(); }

// Bare linear layers, which triple their input.
PipelineLayers triplers(
    int count,
    const std::function<void(int layer)>& before) {
  PipelineLayers layers;
  for (int i = 0; i < count; ++i) {
    torch::nn::Linear linear(torch::nn::LinearOptions(2, 2).bias(false));
    const torch::NoGradGuard no_grad;
    linear->weight.copy_(3 * torch::eye(2));
    layers.add(
        "layer" + std::to_string(i),
        linear,
        [before, i](torch::nn::LinearImpl& module, const Tensor& x) {
          before(i);
          return module.forward(x);
        });
  }
  return layers;
}

TEST(DevicePipeline, NamesTheStageThatThrows) {
  for (const int thrower : {0, 1, 2}) {
    std::atomic<int> num_victims = 0;
    run_on_nccl_ranks(3, [&](const WorldOptions& world) {
      const Accelerator accelerator = accelerator_of(world);
      int calls = 0;
      const Pipeline pipeline(
          accelerator,
          triplers(
              3,
              [&](int layer) {
                if (layer == thrower && ++calls == 6)
                  throw std::runtime_error("the layer broke");
              }),
          {.num_micro_batches = 4});
      const Tensor x = torch::ones({4, 2}).to(accelerator.device());
      const auto step = [&] { return pipeline.step(x, x, &sum_of); };
      EXPECT_EQ(step().loss.item<float>(), 2 * 27);
      if (*world.rank == thrower) {
        expect_error<std::runtime_error>(step, "the layer broke");
      } else {
        expect_error<DistributedError>(
            step,
            "stage " + std::to_string(thrower) + " of 3 (rank " +
                std::to_string(thrower) +
                "), in the forward of micro-batch 1, failed: the layer broke");
        ++num_victims;
      }
      expect_error<DistributedError>(
          step, "the pipeline can no longer be used, since stage");
    });
    EXPECT_EQ(num_victims, 2);
    EXPECT_EQ(testing::num_nccl_communicators(), 0);
  }
}

TEST(DevicePipeline, NamesTheRankThatHasEnded) {
  std::atomic<int> num_victims = 0;
  run_on_nccl_ranks(3, [&](const WorldOptions& world) {
    const Accelerator accelerator = accelerator_of(world);
    const Pipeline pipeline(
        accelerator, triplers(3, [](int) {}), {.num_micro_batches = 4});
    const Tensor x = torch::ones({4, 2}).to(accelerator.device());
    const auto step = [&] { return pipeline.step(x, x, &sum_of); };
    EXPECT_EQ(step().loss.item<float>(), 2 * 27);
    if (*world.rank == 1) return;
    expect_error<DistributedError>(step, "[pipeline] rank 1, which stage ");
    ++num_victims;
  });
  EXPECT_EQ(num_victims, 2);
  EXPECT_EQ(testing::num_nccl_communicators(), 0);
}

// More tensors than an exchange of hosts has, one of them on the host.
TEST(DevicePipeline, HandsOnWhateverLayersReturn) {
  run_on_nccl_ranks(2, [](const WorldOptions& world) {
    const Accelerator accelerator = accelerator_of(world);
    using Many = std::tuple<std::vector<Tensor>, Tensor, std::optional<Tensor>>;
    PipelineLayers layers;
    layers
        .add(
            "cut",
            torch::nn::Linear(torch::nn::LinearOptions(20, 20).bias(false)),
            [](torch::nn::LinearImpl& linear, const Tensor& x) {
              return Many{
                  linear.forward(x).split(1, 1),
                  torch::full({1, 1}, 7.0),
                  std::nullopt};
            })
        .add("join", [](const Many& many) {
          EXPECT_FALSE(std::get<1>(many).is_cpu());
          EXPECT_FALSE(std::get<2>(many).has_value());
          return torch::cat(std::get<0>(many), 1) * std::get<1>(many);
        });
    {
      const torch::NoGradGuard no_grad;
      layers.layers().front().modules.front().second->parameters()[0].copy_(
          torch::eye(20));
    }
    const Pipeline pipeline(accelerator, layers, {.num_micro_batches = 2});
    const Tensor x = torch::arange(80.0).view({4, 20}).to(accelerator.device());
    const PipelineResult result =
        pipeline.step(x, x, &sum_of, {.gather_outputs = true});
    EXPECT_TRUE(result.outputs[0].cpu().equal(x.cpu() * 7));
    if (*world.rank == 0) {
      EXPECT_EQ(
          pipeline.parameters()[0].grad().cpu()[0][1].item<float>(),
          7.0F * (1 + 21 + 41 + 61) / 2);
    }
  });
}

TEST(DevicePipeline, FollowsShapesThatChange) {
  run_on_nccl_ranks(3, [](const WorldOptions& world) {
    const Accelerator accelerator = accelerator_of(world);
    PipelineLayers layers;
    for (const char* const name : {"a", "b", "c"})
      layers.add(name, [](const Tensor& x) { return x * 2; });
    const Pipeline pipeline(
        accelerator,
        layers,
        {.num_micro_batches = 2, .shapes_may_change = true});
    for (const std::int64_t width : {3, 5, 2}) {
      const Tensor x = torch::ones({4, width}).to(accelerator.device());
      EXPECT_TRUE(pipeline.forward(x, true)[0].cpu().equal(
          8 * torch::ones({4, width})));
    }
  });
}

TEST(DevicePipeline, AddsUpGradientsOfTiedWeights) {
  run_on_nccl_ranks(2, [](const WorldOptions& world) {
    const Accelerator accelerator = accelerator_of(world);
    torch::nn::Linear linear(torch::nn::LinearOptions(2, 2).bias(false));
    {
      const torch::NoGradGuard no_grad;
      linear->weight.copy_(3 * torch::eye(2));
    }
    PipelineLayers layers;
    layers.add("first", linear)
        .add(
            "last",
            [linear](const Tensor& x) { return x.matmul(linear->weight.t()); })
        .uses("first", linear);
    const Pipeline pipeline(
        accelerator,
        layers,
        {.split_points = {"last"}, .num_micro_batches = 2});
    const Tensor x = torch::ones({2, 2}).to(accelerator.device());
    const std::int64_t before = testing::pretend_host_waits();
    pipeline.step(x, x, &sum_of);
    EXPECT_EQ(testing::pretend_host_waits(), before);
    // Each use adds 3 for each of two samples.
    EXPECT_EQ(pipeline.parameters()[0].grad().cpu()[0][0].item<float>(), 6);
  });
}

TEST(DevicePipeline, ComputesOutputsAlone) {
  run_on_nccl_ranks(3, [](const WorldOptions& options) {
    const World world(options);
    PipelineLayers layers;
    for (const char* const name : {"a", "b", "c"})
      layers.add(name, [](const Tensor& x) { return x * 3; });
    const auto model = prepare_pippy(world, layers, {.gather_output = true});
    const Tensor x = torch::arange(8.0).view({4, 2});
    for (int call = 0; call < 2; ++call)
      EXPECT_TRUE(model(x)[0].cpu().equal(x * 27));
  });
}

}  // namespace device_pipeline_test
}  // namespace accelerate
