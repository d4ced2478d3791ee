// Stages that are slow, have no parameters, or whose rank has ended.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <atomic>
#include <string>
#include <thread>

#include <accelerate/accelerator.h>
#include <accelerate/error.h>
#include <accelerate/pipeline.h>

#include "support/expect_error.h"
#include "support/run_on_ranks.h"

namespace accelerate {
namespace pipeline_fault_test {

using at::Tensor;
using testing::expect_error;
using testing::run_on_ranks;

constexpr int kStages = 3;
constexpr int kMicroBatches = 4;

AcceleratorOptions options_of(const WorldOptions& world) {
  return {.parallel = {.pipeline = kStages}, .world = world};
}

// A linear layer without bias whose weight is diagonal.
torch::nn::Linear diagonal(double value) {
  torch::nn::Linear linear(torch::nn::LinearOptions(2, 2).bias(false));
  const torch::NoGradGuard no_grad;
  linear->weight.copy_(value * torch::eye(2));
  return linear;
}

PipelineResult step(const Pipeline& pipeline) {
  const Tensor x = torch::tensor({{1.0F, 2.0F}}).expand({kMicroBatches, 2});
  return pipeline.step(
      x, x, [](const Tensor& y, const Tensor&) { return y.sum(); });
}

TEST(PipelineFaults, WaitsForASlowStage) {
  std::atomic<int> num_forwards = 0;
  run_on_ranks(kStages, [&](const WorldOptions& world) {
    const Accelerator accelerator(options_of(world));
    PipelineLayers layers;
    layers
        .add(
            "first",
            diagonal(2),
            [&](torch::nn::LinearImpl& linear, const Tensor& x) {
              ++num_forwards;
              return linear.forward(x);
            })
        .add(
            "slow",
            diagonal(3),
            [&](torch::nn::LinearImpl& linear, const Tensor& x) {
              // By then the previous stage has sent everything.
              while (num_forwards < kMicroBatches) std::this_thread::yield();
              return linear.forward(x);
            })
        .add("last", diagonal(5));
    const Pipeline pipeline(
        accelerator,
        layers,
        {.schedule = PipelineScheduleKind::gpipe,
         .num_micro_batches = kMicroBatches});
    const PipelineResult result = step(pipeline);
    EXPECT_EQ(result.loss.item<float>(), 90);
    const Tensor gradient = pipeline.parameters()[0].grad();
    const float others[] = {15, 10, 6};
    EXPECT_EQ(
        gradient[0][0].item<float>(),
        others[static_cast<std::size_t>(*world.rank)]);
  });
}

TEST(PipelineFaults, TrainsAroundAStageWithoutParameters) {
  for (const char* const schedule : {"1F1B", "ZBH1"}) {
    run_on_ranks(kStages, [&](const WorldOptions& world) {
      const Accelerator accelerator(options_of(world));
      PipelineLayers layers;
      layers.add("first", diagonal(2))
          .add("middle", [](const Tensor& x) { return torch::relu(x); })
          .add("last", diagonal(5));
      const Pipeline pipeline(
          accelerator,
          layers,
          {.split_points = {"middle", "last"},
           .schedule = parse_pipeline_schedule(schedule),
           .num_micro_batches = kMicroBatches});
      torch::optim::SGD sgd(pipeline.parameters(), 0.1);
      const Optimizer optimizer = accelerator.prepare(sgd);
      EXPECT_EQ(step(pipeline).loss.item<float>(), 30);
      optimizer.step();
      optimizer.zero_grad();
      // d loss / d first[0][0] = 1 x 5, and d loss / d last[0][0] = 1 x 2.
      if (*world.rank == 1) {
        EXPECT_TRUE(pipeline.parameters().empty());
      } else {
        EXPECT_FLOAT_EQ(
            pipeline.parameters()[0][0][0].item<float>(),
            *world.rank == 0 ? 1.5F : 4.8F);
      }
      step(pipeline);
    });
  }
}

TEST(PipelineFaults, NameTheRankThatHasEnded) {
  std::atomic<int> num_victims = 0;
  run_on_ranks(kStages, [&](const WorldOptions& world) {
    const Accelerator accelerator(options_of(world));
    PipelineLayers layers;
    for (const char* const name : {"first", "gone", "last"})
      layers.add(name, diagonal(2));
    const Pipeline pipeline(
        accelerator, layers, {.num_micro_batches = kMicroBatches});
    if (*world.rank == 1) return;
    expect_error<DistributedError>(
        [&] { step(pipeline); }, "[pipeline] rank 1, which stage ");
    expect_error<DistributedError>(
        [&] { step(pipeline); },
        "the pipeline can no longer be used, since rank 1, which stage ");
    ++num_victims;
  });
  EXPECT_EQ(num_victims, kStages - 1);
}

}  // namespace pipeline_fault_test
}  // namespace accelerate
