// Pipelines whose stages are also split, replicated, or share weights.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <atomic>
#include <functional>
#include <mutex>

#include <torch/csrc/distributed/c10d/comm.hpp>

#include <accelerate/accelerator.h>
#include <accelerate/bucket_hook.h>
#include <accelerate/error.h>
#include <accelerate/local_sgd.h>
#include <accelerate/pipeline.h>

#include "support/expect_error.h"
#include "support/named_weights.h"
#include "support/run_on_ranks.h"

namespace accelerate {
namespace pipeline_axes_test {

namespace F = torch::nn::functional;
using at::Tensor;
using testing::expect_error;
using testing::run_on_ranks;
using testing::Weights;

// A language model with two blocks, whose logits are products with the
// embedding.
struct TiedNet {
  torch::nn::Embedding embedding{12, 8};
  torch::nn::Linear up{8, 16};
  torch::nn::Linear down{16, 8};
  torch::nn::Linear last{8, 8};

  TiedNet() {
    const torch::NoGradGuard no_grad;
    for (const auto& [name, tensor] : parameters()) {
      const auto n = static_cast<double>(name.size());
      tensor.copy_(
          torch::sin(torch::arange(tensor.numel()) * n).view_as(tensor) * 0.5);
    }
  }
  [[nodiscard]] std::vector<std::pair<std::string, Tensor>> parameters() const {
    return {
        {"embedding.weight", embedding->weight},
        {"up.weight", up->weight},
        {"up.bias", up->bias},
        {"down.weight", down->weight},
        {"down.bias", down->bias},
        {"last.weight", last->weight},
        {"last.bias", last->bias}};
  }
  [[nodiscard]] PipelineLayers layers() const {
    PipelineLayers layers;
    layers.add("embedding", embedding)
        .add(
            "up",
            up,
            [](torch::nn::LinearImpl& module, Tensor x) {
              return torch::tanh(module.forward(x));
            })
        .add("down", down)
        .add(
            "last",
            last,
            [embedding = embedding](torch::nn::LinearImpl& module, Tensor x) {
              return torch::tanh(module.forward(x))
                  .matmul(embedding->weight.t());
            })
        .uses("embedding", embedding);
    return layers;
  }
};

struct Batch {
  Tensor words;
  Tensor labels;
};

constexpr std::int64_t kRows = 8;

Batch batch(int step) {
  const Tensor numbers = torch::arange(kRows) + step * kRows;
  return {numbers * 7 % 12, numbers * 5 % 12};
}

Tensor loss_of(const Tensor& logits, const Tensor& labels) {
  return F::cross_entropy(logits, labels);
}

// What a program does with a pipeline in each optimizer step.
using Step = std::function<void(
    const Accelerator&,
    const Pipeline&,
    const std::function<void(int batch)>& compute,
    const std::function<void()>& update)>;

struct Run {
  int stages = 1;
  int replicas = 1;
  int tensor = 1;
  int window = 1;
  bool sync_each_batch = false;
  std::optional<ParallelizePlan> plan = std::nullopt;
  bool infers_plan = false;
  ReplicateOptions replicate = {};
  std::string schedule = "1F1B";
  int num_chunks = 1;
  std::vector<std::string> split_points = {};
  double loss_factor = 1;
};

struct Outcome {
  /// The weights of all stages, with slices combined.
  Weights weights;
  std::vector<double> losses;
};

// Full weights of a stage, by name.
Weights weights_of(const Pipeline& pipeline) {
  Weights weights;
  const auto scope = pipeline.model().full_parameters();
  for (const auto& item : pipeline.model().named_parameters())
    weights[item.key()] = item.value().detach().clone();
  return weights;
}

Outcome train(const Run& run, const Step& step) {
  Outcome outcome;
  std::mutex mutex;
  const int num_ranks = run.stages * run.replicas * run.tensor;
  run_on_ranks(num_ranks, [&](const WorldOptions& world) {
    const TiedNet net;
    AcceleratorOptions options;
    options.gradient_accumulation = GradientAccumulationOptions{
        .num_steps = run.window, .sync_each_batch = run.sync_each_batch};
    options.parallel.replicate = run.replicas;
    if (run.infers_plan) {
      options.parallel.megatron_lm = MegatronLMOptions{
          .tp_degree = run.tensor,
          .pp_degree = run.stages,
          .gradient_clipping = 0.0};
    } else {
      options.parallel.tensor = run.tensor;
      options.parallel.pipeline = run.stages;
    }
    options.parallel.replicate_options = run.replicate;
    options.parallel.parallelize_plan = run.plan;
    options.world = world;
    const Accelerator accelerator(options);
    const Pipeline pipeline(
        accelerator,
        net.layers(),
        {.split_points = run.split_points,
         .schedule = parse_pipeline_schedule(run.schedule),
         .num_chunks = run.num_chunks,
         .num_micro_batches = 4 / run.replicas});
    torch::optim::SGD sgd(
        pipeline.parameters(),
        torch::optim::SGDOptions(0.2).momentum(0.9).weight_decay(0.1));
    auto optimizer = accelerator.prepare(sgd);
    std::vector<double> losses;
    step(
        accelerator,
        pipeline,
        [&](int number) {
          const Batch all = batch(number);
          const int part = accelerator.mesh().batch_rank();
          const auto share = [&](const Tensor& tensor) {
            return tensor.chunk(run.replicas)[static_cast<std::size_t>(part)];
          };
          losses.push_back(
              pipeline
                  .step(
                      share(all.words),
                      share(all.labels),
                      [&](const Tensor& logits, const Tensor& labels) {
                        return loss_of(logits, labels) * run.loss_factor;
                      })
                  .loss.item<double>());
        },
        [&] {
          optimizer.step();
          optimizer.zero_grad();
        });
    const Weights own = weights_of(pipeline);
    const std::lock_guard lock(mutex);
    if (accelerator.mesh().batch_rank() == 0) outcome.losses = losses;
    for (const auto& [name, weight] : own) {
      const auto [known, is_new] = outcome.weights.emplace(name, weight);
      EXPECT_TRUE(known->second.allclose(weight, 0, 0))
          << name << " differs between ranks";
    }
  });
  return outcome;
}

void expect_close(const Outcome& found, const Outcome& expected) {
  ASSERT_EQ(found.losses.size(), expected.losses.size());
  for (std::size_t i = 0; i < found.losses.size(); ++i)
    EXPECT_NEAR(found.losses[i], expected.losses[i], 1e-5);
  EXPECT_EQ(found.weights.size(), expected.weights.size());
  for (const auto& [name, weight] : expected.weights) {
    ASSERT_TRUE(found.weights.contains(name)) << name;
    EXPECT_TRUE(found.weights.at(name).allclose(weight, 1e-5, 1e-6)) << name;
  }
}

const Step kPlain = [](const Accelerator&,
                       const Pipeline&,
                       const auto& compute,
                       const auto& update) {
  for (int i = 0; i < 3; ++i) {
    compute(i);
    update();
  }
};

// Each pattern names layers that only some of the stages have.
const ParallelizePlan kPlan{
    {"embedding", RowwiseParallel{}},
    {"up", ColwiseParallel{}},
    {"down", RowwiseParallel{}}};

TEST(PipelineAxes, SplitsLayersOfAllStagesByAPlan) {
  const Outcome alone = train({}, kPlain);
  for (const char* schedule : {"1F1B", "ZBH1"}) {
    expect_close(
        train(
            {.stages = 2, .tensor = 2, .plan = kPlan, .schedule = schedule},
            kPlain),
        alone);
  }
  expect_close(
      train(
          {.stages = 2,
           .replicas = 2,
           .tensor = 2,
           .plan = kPlan,
           .split_points = {"last"}},
          kPlain),
      train({.replicas = 2}, kPlain));
}

TEST(PipelineAxes, InfersAPlanForAllStages) {
  expect_close(
      train({.stages = 2, .tensor = 2, .infers_plan = true}, kPlain),
      train({}, kPlain));
}

TEST(PipelineAxes, RefusesAPlanForNoLayerOnAllRanks) {
  std::atomic<int> num_refusals = 0;
  run_on_ranks(4, [&](const WorldOptions& world) {
    const TiedNet net;
    const Accelerator accelerator(
        {.parallel =
             {.tensor = 2,
              .pipeline = 2,
              .parallelize_plan =
                  ParallelizePlan{
                      {"up", ColwiseParallel{}}, {"lost", ColwiseParallel{}}}},
         .world = world});
    expect_error<ConfigError>(
        [&] { Pipeline(accelerator, net.layers()); },
        "the pattern \"lost\" of parallelize_plan matches no module (is "
        "\"last\" meant?)");
    ++num_refusals;
  });
  EXPECT_EQ(num_refusals, 4);
}

// Several synchronised pipeline steps per optimizer step.
TEST(PipelineAxes, AddsUpTiedGradientsOnce) {
  const Step twice = [](const Accelerator&,
                        const Pipeline&,
                        const auto& compute,
                        const auto& update) {
    for (int i = 0; i < 2; ++i) {
      compute(2 * i);
      compute(2 * i + 1);
      update();
    }
  };
  const Step accumulate = [](const Accelerator& accelerator,
                             const Pipeline& pipeline,
                             const auto& compute,
                             const auto& update) {
    for (int i = 0; i < 4; ++i) {
      const auto micro_step = accelerator.accumulate(pipeline.model());
      compute(i);
      update();
    }
  };
  for (const int replicas : {1, 2}) {
    expect_close(
        train({.stages = 2, .replicas = replicas}, twice),
        train({.replicas = replicas}, twice));
    for (const bool sync : {false, true}) {
      expect_close(
          train(
              {.stages = 2,
               .replicas = replicas,
               .window = 2,
               .sync_each_batch = sync},
              accumulate),
          train({.replicas = replicas, .window = 2}, accumulate));
    }
  }
}

TEST(PipelineAxes, AddsUpTiedGradientsInLocalSGD) {
  const Step local = [](const Accelerator& accelerator,
                        const Pipeline& pipeline,
                        const auto& compute,
                        const auto& update) {
    LocalSGD local_sgd(accelerator, pipeline.model(), {.local_sgd_steps = 2});
    for (int i = 0; i < 3; ++i) {
      compute(i);
      update();
      local_sgd.step();
    }
    local_sgd.finish();
  };
  expect_close(
      train({.stages = 2, .replicas = 2}, local),
      train({.replicas = 2}, local));
}

// Doubles the mean of each bucket, and counts the buckets.
std::shared_ptr<const BucketHook> doubling_hook(std::atomic<int>& num_buckets) {
  return std::make_shared<BucketHook>(BucketHook{
      .reduce = [&](c10d::GradBucket& bucket, const BucketContext& ranks) {
        ++num_buckets;
        bucket.getBufferRef().mul_(2 / ranks.divisor);
        std::vector<Tensor> tensors{bucket.getBuffer()};
        return ranks.process_group.allreduce(tensors)->getFuture();
      }});
}

TEST(PipelineAxes, ReducesBucketsByTheHook) {
  const Outcome expected = train({.replicas = 2, .loss_factor = 2}, kPlain);
  for (const char* schedule : {"GPipe", "1F1B", "ZBH1"}) {
    std::atomic<int> num_buckets = 0;
    Outcome found = train(
        {.stages = 2,
         .replicas = 2,
         .replicate =
             {.bucket_bytes = 1,
              .first_bucket_bytes = 1,
              .bucket_hook = doubling_hook(num_buckets)},
         .schedule = schedule},
        kPlain);
    // Seven parameters and the embedding's second copy, two ranks, three
    // steps.
    EXPECT_EQ(num_buckets, 8 * 2 * 3);
    for (double& loss : found.losses) loss *= 2;
    expect_close(found, expected);
  }
  std::atomic<int> num_buckets = 0;
  Outcome found = train(
      {.stages = 2,
       .replicas = 2,
       .replicate =
           {.gradient_as_bucket_view = true,
            .bucket_hook = doubling_hook(num_buckets)},
       .schedule = "Interleaved1F1B",
       .num_chunks = 2},
      kPlain);
  EXPECT_EQ(num_buckets, 2 * 2 * 3);
  for (double& loss : found.losses) loss *= 2;
  expect_close(found, expected);
}

TEST(PipelineAxes, CompressesGradients) {
  const Outcome plain = train({.replicas = 2}, kPlain);
  for (const CommHook hook : {CommHook::bf16, CommHook::power_sgd}) {
    ReplicateOptions options{.comm_hook = hook};
    options.power_sgd.start_power_sgd_iter = 2;
    const Outcome found =
        train({.stages = 2, .replicas = 2, .replicate = options}, kPlain);
    const Tensor& exact = plain.weights.at("down.weight");
    const Tensor& lossy = found.weights.at("down.weight");
    EXPECT_FALSE(lossy.allclose(exact, 1e-7, 1e-8));
    EXPECT_TRUE(lossy.allclose(exact, 0.1, 0.05));
  }
}

// A parameter that only some micro-batches of one replica reach, and one that
// no micro-batch reaches.
TEST(PipelineAxes, AveragesWhatSomeReplicasReach) {
  run_on_ranks(4, [](const WorldOptions& world) {
    const torch::nn::Linear first(2, 2);
    const Tensor rare = torch::ones({2}).requires_grad_();
    const Tensor unused = torch::ones({2}).requires_grad_();
    const Accelerator accelerator(
        {.parallel = {.replicate = 2, .pipeline = 2}, .world = world});
    PipelineLayers layers;
    layers.add("first", first)
        .add(
            "last",
            [rare](Tensor x) {
              return x.min().item<float>() > -100 ? x : x * rare;
            })
        .uses("rare", rare)
        .uses("unused", unused);
    const Pipeline pipeline(accelerator, layers, {.num_micro_batches = 2});
    {
      const torch::NoGradGuard no_grad;
      first->weight.fill_(1);
      first->bias.zero_();
    }
    Tensor x = torch::ones({2, 2});
    if (accelerator.mesh().batch_rank() == 0) x[0].fill_(-200);
    for (int i = 0; i < 2; ++i) {
      pipeline.model().zero_grad();
      pipeline.step(x, x, [](Tensor out, Tensor) { return out.sum(); });
      if (!pipeline.has_last_stage()) continue;
      EXPECT_FALSE(unused.grad().defined());
      // The mean over two micro-batches and two replicas.
      ASSERT_TRUE(rare.grad().defined());
      EXPECT_TRUE(rare.grad().equal(torch::full({2}, -100.0)));
    }
  });
}

// A tied layer that only one of its two stages uses.
TEST(PipelineAxes, WaitsForNoTiedGradientThatAStageLacks) {
  for (const bool uses_first : {false, true}) {
    std::atomic<int> num_ends = 0;
    run_on_ranks(2, [&](const WorldOptions& world) {
      const torch::nn::Linear shared(3, 3);
      {
        const torch::NoGradGuard no_grad;
        shared->weight.fill_(0.5);
        shared->bias.fill_(0.25);
      }
      const Accelerator accelerator(
          {.parallel = {.pipeline = 2}, .world = world});
      PipelineLayers layers;
      layers
          .add(
              "first",
              [shared, uses_first](Tensor x) {
                return uses_first ? shared.get()->weight * x : x * 2;
              })
          .uses("shared", shared)
          .add(
              "last",
              [shared, uses_first](Tensor x) {
                return uses_first ? x * 2 : shared.get()->weight * x;
              })
          .uses("shared", shared);
      const Pipeline pipeline(accelerator, layers, {.num_micro_batches = 1});
      pipeline.step(
          torch::ones({3, 3}), torch::ones({3, 3}), [](Tensor out, Tensor) {
            return out.sum();
          });
      ASSERT_TRUE(shared->weight.grad().defined());
      EXPECT_TRUE(shared->weight.grad().equal(torch::full({3, 3}, 2.0)));
      // No stage uses the bias.
      EXPECT_FALSE(shared->bias.grad().defined());
      ++num_ends;
    });
    EXPECT_EQ(num_ends, 2);
  }
}

}  // namespace pipeline_axes_test
}  // namespace accelerate
