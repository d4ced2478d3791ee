#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <array>
#include <atomic>
#include <map>
#include <mutex>

#include <accelerate/accelerator.h>
#include <accelerate/error.h>
#include <accelerate/pipeline.h>

#include "base/text/text.h"
#include "pipeline/staged_training.h"
#include "support/expect_error.h"
#include "support/run_on_ranks.h"

namespace accelerate {
namespace pipeline_steps_test {

namespace F = torch::nn::functional;
using at::Tensor;
using ::testing::Each;
using ::testing::ElementsAre;
using testing::expect_error;
using testing::run_on_ranks;
using namespace staged_training;

TEST(Pipeline, HasAllStagesOnOneRank) {
  expect_same(
      train_in_stages({1, "Interleaved1F1B", 3, 4, false}), train_alone(4));
  expect_same(train_in_stages({1, "1F1B", 1, 5, false}), train_alone(5));
}

// Fewer micro-batches than stages.
TEST(Pipeline, ComputesFewerMicroBatchesThanStages) {
  for (const char* schedule : {"GPipe", "1F1B", "ZBH1"}) {
    expect_same(train_in_stages({4, schedule, 1, 1, false}), train_alone(1));
    expect_same(train_in_stages({4, schedule, 1, 3, false}), train_alone(3));
  }
  expect_error<ConfigError>(
      [] { train_in_stages({2, "DualPipeV", 2, 3, false}); },
      "DualPipeV needs at least as many micro-batches as there are stages");
}

TEST(Pipeline, ShowsItsStages) {
  run_on_ranks(2, [](const WorldOptions& world) {
    const Accelerator accelerator(
        {.parallel = {.pipeline = 2}, .world = world});
    const Net net;
    const Pipeline pipeline(
        accelerator,
        layers_of(net),
        {.split_points = {"blocks.2"}, .num_micro_batches = 2});
    EXPECT_EQ(pipeline.num_stages(), 2);
    EXPECT_EQ(pipeline.has_first_stage(), *world.rank == 0);
    EXPECT_EQ(pipeline.has_last_stage(), *world.rank == 1);
    EXPECT_THAT(
        pipeline.stages()[0], ElementsAre("first", "blocks.0", "blocks.1"));
    EXPECT_EQ(
        pipeline.describe(),
        "stage 0 (rank 0 of the pipeline): first, blocks.0, blocks.1\n"
        "stage 1 (rank 1 of the pipeline): blocks.2, blocks.3, blocks.4, "
        "blocks.5, relu, head\n"
        "rank 0: F0 F1       B0       B1\n"
        "rank 1:    F0 B0    F1 B1\n");
    EXPECT_EQ(net->head->weight.is_meta(), *world.rank == 0);
    EXPECT_EQ(net->first->weight.is_meta(), *world.rank == 1);
  });
}

// Six blocks on two ranks.
TEST(Pipeline, FollowsMegatronsSettings) {
  run_on_ranks(2, [](const WorldOptions& world) {
    const auto described = [&](const MegatronLMOptions& megatron,
                               const PipelineOptions& options = {}) {
      const Accelerator accelerator(
          {.parallel = {.megatron_lm = megatron}, .world = world});
      const Net net;
      const Pipeline pipeline(accelerator, layers_of(net), options);
      const std::string text = pipeline.describe();
      return std::to_string(pipeline.num_stages()) + " stages\n" +
          text.substr(text.find("rank 0: "));
    };
    EXPECT_EQ(
        described({.pp_degree = 2, .num_micro_batches = 3}),
        "2 stages\n"
        "rank 0: F0 F1       B0    F2 B1       B2\n"
        "rank 1:    F0 B0    F1 B1    F2 B2\n");
    EXPECT_EQ(
        described({.pp_degree = 2, .num_layers_per_virtual_pipeline_stage = 3}),
        described({.pp_degree = 2}));
    const PipelineOptions three{
        .schedule = PipelineScheduleKind::interleaved_1f1b, .num_chunks = 3};
    EXPECT_EQ(
        described({.pp_degree = 2, .num_layers_per_virtual_pipeline_stage = 1}),
        described({.pp_degree = 2}, three));
    // The program's options override Megatron-LM's settings.
    EXPECT_EQ(
        described(
            {.pp_degree = 2,
             .num_micro_batches = 3,
             .num_layers_per_virtual_pipeline_stage = 1},
            {.schedule = PipelineScheduleKind::gpipe, .num_micro_batches = 4}),
        described(
            {.pp_degree = 2},
            {.schedule = PipelineScheduleKind::gpipe, .num_micro_batches = 4}));
    EXPECT_EQ(
        described(
            {.pp_degree = 2, .num_layers_per_virtual_pipeline_stage = 3},
            three),
        described({.pp_degree = 2}, three));
    expect_error<ConfigError>(
        [&] {
          described(
              {.pp_degree = 2, .num_layers_per_virtual_pipeline_stage = 2});
        },
        "num_layers_per_virtual_pipeline_stage is 2, but the model has 6 "
        "layers of one class");
  });
}

TEST(Pipeline, GivesTheLastRankMegatronsNumberOfLayers) {
  run_on_ranks(2, [](const WorldOptions& world) {
    const auto stages = [&](const MegatronLMOptions& megatron,
                            const PipelineOptions& options = {}) {
      const Accelerator accelerator(
          {.parallel = {.megatron_lm = megatron}, .world = world});
      const Net net;
      const Pipeline pipeline(accelerator, layers_of(net), options);
      std::vector<std::string> texts;
      for (const auto& layers : pipeline.stages())
        texts.push_back(detail::join(layers, " "));
      return texts;
    };
    EXPECT_THAT(
        stages({.pp_degree = 2, .decoder_last_pipeline_num_layers = 1}),
        ElementsAre(
            "first blocks.0 blocks.1 blocks.2 blocks.3 blocks.4",
            "blocks.5 relu head"));
    // No block, only the layers after the blocks.
    EXPECT_THAT(
        stages({.pp_degree = 2, .decoder_last_pipeline_num_layers = 0}),
        ElementsAre(
            "first blocks.0 blocks.1 blocks.2 blocks.3 blocks.4 blocks.5",
            "relu head"));
    const MegatronLMOptions interleaved{
        .pp_degree = 2,
        .decoder_last_pipeline_num_layers = 2,
        .num_layers_per_virtual_pipeline_stage = 2};
    EXPECT_THAT(
        stages(interleaved),
        ElementsAre(
            "first blocks.0 blocks.1",
            "blocks.2",
            "blocks.3 blocks.4",
            "blocks.5 relu head"));
    // The last stage is on the first rank.
    EXPECT_THAT(
        stages(
            {.pp_degree = 2, .decoder_last_pipeline_num_layers = 2},
            {.schedule = PipelineScheduleKind::zero_bubble_v}),
        ElementsAre(
            "first blocks.0",
            "blocks.1 blocks.2",
            "blocks.3 blocks.4",
            "blocks.5 relu head"));
    // The program's options override the setting.
    EXPECT_THAT(
        stages(
            {.pp_degree = 2, .decoder_last_pipeline_num_layers = 1},
            {.split_points = {"blocks.2"}}),
        ElementsAre(
            "first blocks.0 blocks.1",
            "blocks.2 blocks.3 blocks.4 blocks.5 relu head"));
    EXPECT_THAT(
        stages(
            {.pp_degree = 2, .decoder_last_pipeline_num_layers = 1},
            {.costs = {1, 1, 1, 1, 1, 1, 1, 1, 8}}),
        ElementsAre(
            "first blocks.0 blocks.1 blocks.2 blocks.3 blocks.4 blocks.5 relu",
            "head"));
    for (const int wrong : {6, 7}) {
      expect_error<ConfigError>(
          [&] {
            stages({.pp_degree = 2, .decoder_last_pipeline_num_layers = wrong});
          },
          "decoder_last_pipeline_num_layers is " + std::to_string(wrong) +
              ", but the model has 6 layers of one class, for 2 ranks");
    }
    expect_error<ConfigError>(
        [&] {
          MegatronLMOptions odd = interleaved;
          odd.decoder_last_pipeline_num_layers = 3;
          stages(odd);
        },
        "beside 3 on the last one");
  });
}

TEST(Pipeline, DividesByCosts) {
  run_on_ranks(2, [](const WorldOptions& world) {
    const Accelerator accelerator(
        {.parallel = {.pipeline = 2}, .world = world});
    const Net net;
    const Pipeline pipeline(
        accelerator,
        layers_of(net),
        {.costs = {9, 1, 1, 1, 1, 1, 1, 1, 1}, .losses_on_all_ranks = false});
    EXPECT_THAT(pipeline.stages()[0], ElementsAre("first"));
    const PipelineResult result = pipeline.step(
        torch::ones({2, 4}), torch::zeros({2}, torch::kLong), &loss_of);
    EXPECT_EQ(result.loss.defined(), pipeline.has_last_stage());
  });
}

TEST(Pipeline, EvaluatesWithoutGradients) {
  const Data all = data();
  Net first = make_net();
  const Tensor expected = first->forward(all.inputs);
  run_on_ranks(3, [&](const WorldOptions& world) {
    const Accelerator accelerator(
        {.parallel = {.pipeline = 3}, .world = world});
    const Net net;
    copy_weights(first, net);
    const Pipeline pipeline(
        accelerator, layers_of(net), {.num_micro_batches = 4});
    const bool is_last = pipeline.has_last_stage();
    EXPECT_EQ(pipeline.forward(all.inputs).size(), is_last ? 1 : 0);
    const PipelineTensors outputs = pipeline.forward(all.inputs, true);
    ASSERT_EQ(outputs.size(), 1);
    EXPECT_TRUE(outputs[0].allclose(expected, 1e-6, 1e-6));
    EXPECT_FALSE(outputs[0].requires_grad());
    const PipelineResult result = pipeline.evaluate(
        all.inputs, all.labels, &loss_of, {.return_outputs = true});
    EXPECT_NEAR(
        result.loss.item<double>(),
        loss_of(expected, all.labels).item<double>(),
        1e-6);
    EXPECT_EQ(result.outputs.size(), is_last ? 1 : 0);
    const PipelineResult gathered = pipeline.evaluate(
        all.inputs, all.labels, &loss_of, {.gather_outputs = true});
    ASSERT_EQ(gathered.outputs.size(), 1);
    EXPECT_TRUE(gathered.outputs[0].allclose(expected, 1e-6, 1e-6));
    const PipelineResult none =
        pipeline.evaluate(all.inputs, all.labels, &loss_of);
    EXPECT_EQ(none.outputs.size(), 0);
    for (const Tensor& parameter : pipeline.parameters())
      EXPECT_FALSE(parameter.grad().defined());
  });
}

// A mask that all stages need, a skip connection, and integers.
TEST(Pipeline, HandsOnSeveralTensors) {
  struct Parts {
    torch::nn::Linear a{3, 4};
    torch::nn::Linear b{4, 4};
    torch::nn::Linear c{4, 1};
  };
  torch::manual_seed(2);
  Parts alone;
  const Tensor x = torch::randn({6, 3});
  const Tensor tokens = torch::randint(4, {6}, torch::kLong);
  const auto forward = [](Parts& parts, const Tensor& in, const Tensor& t) {
    const Tensor h = torch::tanh(parts.a->forward(in));
    const Tensor g = torch::tanh(parts.b->forward(h));
    return parts.c->forward(g + h).squeeze(1) * t;
  };
  forward(alone, x, tokens).sum().backward();
  run_on_ranks(3, [&](const WorldOptions& world) {
    const Accelerator accelerator(
        {.parallel = {.pipeline = 3}, .world = world});
    Parts parts;
    {
      const torch::NoGradGuard no_grad;
      for (const auto& [from, to] :
           {std::pair(alone.a, parts.a),
            std::pair(alone.b, parts.b),
            std::pair(alone.c, parts.c)}) {
        to->weight.copy_(from->weight);
        to->bias.copy_(from->bias);
      }
    }
    PipelineLayers layers;
    layers
        .add(
            "a",
            parts.a,
            [](torch::nn::LinearImpl& a, Tensor in, Tensor t) {
              return std::tuple(torch::tanh(a.forward(in)), t);
            })
        .add(
            "b",
            parts.b,
            [](torch::nn::LinearImpl& b, Tensor h, Tensor t) {
              return std::tuple(torch::tanh(b.forward(h)), h, t);
            })
        .add(
            "c",
            parts.c,
            [](torch::nn::LinearImpl& c, Tensor g, Tensor h, Tensor t) {
              return c.forward(g + h).squeeze(1) * t;
            });
    for (const char* schedule : {"GPipe", "ZBH1"}) {
      const Pipeline pipeline(
          accelerator,
          layers,
          {.schedule = parse_pipeline_schedule(schedule),
           .num_micro_batches = 1,
           .micro_batch_loss = MicroBatchLoss::sum});
      pipeline.step(
          std::tuple(x, tokens),
          PipelineTensors{},
          [](const PipelineTensors& outputs, const PipelineTensors&) {
            return outputs[0].sum();
          });
      const auto& from = *world.rank == 0 ? alone.a
          : *world.rank == 1              ? alone.b
                                          : alone.c;
      const auto& to = *world.rank == 0 ? parts.a
          : *world.rank == 1            ? parts.b
                                        : parts.c;
      EXPECT_TRUE(to->weight.grad().equal(from->weight.grad())) << schedule;
      EXPECT_TRUE(to->bias.grad().equal(from->bias.grad())) << schedule;
      pipeline.model().zero_grad();
      accelerator.free_memory();
    }
  });
}

// Kernels may round differently in another layout. The second micro-batch has
// another one than the first, whose layout the stages agreed on.
TEST(Pipeline, HandsOnTensorsAsTheyLieInMemory) {
  run_on_ranks(2, [](const WorldOptions& world) {
    const Accelerator accelerator(
        {.parallel = {.pipeline = 2}, .world = world});
    std::vector<std::vector<std::int64_t>> strides;
    std::vector<Tensor> values;
    PipelineLayers layers;
    layers
        .add(
            "turned",
            [](Tensor x) {
              const bool is_second = x[0][0][0].item<float>() > 0;
              return is_second ? x.permute({2, 1, 0}).contiguous()
                               : x.permute({2, 1, 0});
            })
        .add("seen", [&](Tensor x) {
          strides.push_back(x.strides().vec());
          values.push_back(x);
          return x.permute({2, 1, 0}) * 1;
        });
    const Pipeline pipeline(
        accelerator,
        layers,
        {.split_points = {"seen"}, .num_micro_batches = 2});
    const Tensor x = torch::arange(48, torch::kFloat).view({4, 3, 4});
    static_cast<void>(pipeline.forward(x));
    if (*world.rank == 0) return;
    EXPECT_THAT(strides, Each(ElementsAre(1, 4, 12)));
    ASSERT_EQ(values.size(), 2);
    EXPECT_TRUE(values[1].equal(x.slice(0, 2).permute({2, 1, 0})));
  });
}

// Maps, an optional that some stages fill, and many tensors.
TEST(Pipeline, HandsOnNestedValues) {
  using TensorMap = std::map<std::string, Tensor>;
  const auto make = [] {
    torch::manual_seed(2);
    return std::array<torch::nn::Linear, 3>{
        torch::nn::Linear(3, 4),
        torch::nn::Linear(4, 4),
        torch::nn::Linear(4, 1)};
  };
  auto alone = make();
  const Tensor x = torch::linspace(-1, 1, 18).view({6, 3});
  const Tensor mask = torch::arange(6) > 2;
  {
    Tensor h = alone[0]->forward(x);
    const std::vector<Tensor> parts = (h * 2).split(1, 1);
    Tensor g = torch::tanh(alone[1]->forward(h)) * mask.unsqueeze(1);
    for (const Tensor& part : parts) g = g + part;
    alone[2]->forward(g).square().sum().backward();
  }
  std::mutex mutex;
  run_on_ranks(3, [&](const WorldOptions& world) {
    const Accelerator accelerator(
        {.parallel = {.pipeline = 3}, .world = world});
    std::unique_lock lock(mutex);
    const auto net = make();
    lock.unlock();
    PipelineLayers layers;
    layers
        .add(
            "a",
            net[0],
            [](torch::nn::LinearImpl& a, const TensorMap& in) {
              const Tensor h = a.forward(in.at("x"));
              std::vector<Tensor> parts = (h * 2).split(1, 1);
              return std::tuple(
                  TensorMap{{"h", h}, {"mask", in.at("mask")}},
                  std::optional<Tensor>(),
                  parts);
            })
        .add(
            "b",
            net[1],
            [](torch::nn::LinearImpl& b,
               const TensorMap& in,
               std::optional<Tensor> scale,
               std::vector<Tensor> parts) {
              EXPECT_FALSE(scale.has_value());
              scale = in.at("mask").unsqueeze(1);
              return std::tuple(
                  torch::tanh(b.forward(in.at("h"))), scale, parts);
            })
        .add(
            "c",
            net[2],
            [](torch::nn::LinearImpl& c,
               Tensor g,
               std::optional<Tensor> scale,
               const std::vector<Tensor>& parts) {
              g = g * *scale;
              for (const Tensor& part : parts) g = g + part;
              return TensorMap{{"out", c.forward(g)}, {"scale", *scale}};
            });
    for (const char* schedule : {"1F1B", "ZBH1"}) {
      const Pipeline pipeline(
          accelerator,
          layers,
          {.schedule = parse_pipeline_schedule(schedule),
           .num_micro_batches = 2,
           .micro_batch_loss = MicroBatchLoss::sum});
      const PipelineResult result = pipeline.step(
          TensorMap{{"x", x}, {"mask", mask}},
          std::optional<Tensor>(),
          [](const TensorMap& out, std::optional<Tensor> none) {
            EXPECT_FALSE(none.has_value());
            return out.at("out").square().sum();
          },
          {.gather_outputs = true});
      const auto outputs = result.outputs_as<TensorMap>();
      EXPECT_TRUE(outputs.at("scale").squeeze(1).equal(mask));
      const auto stage = static_cast<std::size_t>(*world.rank);
      EXPECT_TRUE(net[stage].get()->weight.grad().allclose(
          alone[stage].get()->weight.grad(), 1e-5, 1e-6));
      pipeline.model().zero_grad();
      accelerator.free_memory();
    }
  });
}

TEST(Pipeline, HandsOnHundredsOfTensors) {
  run_on_ranks(2, [&](const WorldOptions& world) {
    const Accelerator accelerator(
        {.parallel = {.pipeline = 2}, .world = world});
    PipelineLayers layers;
    layers.add("a", [](Tensor x) { return (x * 2).split(1, 1); })
        .add(
            "b", [](const PipelineTensors& all) { return torch::cat(all, 1); });
    const Pipeline pipeline(accelerator, layers, {.num_micro_batches = 2});
    const Tensor x = torch::arange(400.0).view({2, 200});
    EXPECT_TRUE(pipeline.forward(x, true)[0].equal(x * 2));
  });
}

TEST(Pipeline, NamesTheStageThatThrows) {
  for (const int thrower : {0, 1, 2}) {
    std::atomic<int> num_victims = 0;
    run_on_ranks(3, [&](const WorldOptions& world) {
      const Accelerator accelerator(
          {.parallel = {.pipeline = 3}, .world = world});
      int calls = 0;
      PipelineLayers layers;
      for (int i = 0; i < 3; ++i) {
        layers.add(
            "layer" + std::to_string(i),
            torch::nn::Linear(2, 2),
            [&, i](torch::nn::LinearImpl& linear, Tensor x) {
              if (i == thrower && ++calls == 2)
                throw std::runtime_error("the layer broke");
              return linear.forward(x);
            });
      }
      const Pipeline pipeline(accelerator, layers, {.num_micro_batches = 4});
      const auto step = [&] {
        pipeline.step(
            torch::ones({4, 2}), torch::ones({4, 2}), [](Tensor x, Tensor) {
              return x.sum();
            });
      };
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
  }
}

TEST(Pipeline, NamesShapesThatChange) {
  for (const bool may_change : {false, true}) {
    run_on_ranks(2, [&](const WorldOptions& world) {
      const Accelerator accelerator(
          {.parallel = {.pipeline = 2}, .world = world});
      PipelineLayers layers;
      layers.add("a", [](Tensor x) { return x; }).add("b", [](Tensor x) {
        return x;
      });
      const Pipeline pipeline(
          accelerator,
          layers,
          {.num_micro_batches = 2, .shapes_may_change = may_change});
      EXPECT_EQ(pipeline.forward(torch::ones({4, 3}), true)[0].size(1), 3);
      // The number of samples may always change.
      EXPECT_EQ(pipeline.forward(torch::ones({7, 3}), true)[0].size(0), 7);
      const auto longer = [&] {
        return pipeline.forward(torch::ones({4, 5}), true);
      };
      if (may_change) {
        EXPECT_EQ(longer()[0].size(1), 5);
      } else if (*world.rank == 0) {
        expect_error<ConfigError>(
            longer,
            "stage 0 returned Float [2, 5] without gradient for micro-batch 0, "
            "but Float [2, 3] without gradient for the first one of 2 rows");
      } else {
        expect_error<DistributedError>(longer, "stage 0 returned Float [2, 5]");
      }
    });
  }
}

TEST(Pipeline, RefusesBatchesThatCannotBeDivided) {
  run_on_ranks(1, [](const WorldOptions& world) {
    const Accelerator accelerator({.world = world});
    const Net net;
    const Pipeline pipeline(
        accelerator, layers_of(net), {.num_micro_batches = 4});
    const auto refused = [&](const Tensor& x,
                             const Tensor& y,
                             auto loss,
                             const std::string& why) {
      expect_error<ConfigError>([&] { pipeline.step(x, y, loss); }, why);
    };
    refused(
        torch::ones({4, 4}), torch::ones({3}), &loss_of, "but have 4 and 3");
    refused(Tensor(), torch::ones({3}), &loss_of, "undefined tensor");
    refused(torch::ones({0, 4}), torch::ones({0}), &loss_of, "at least one");
    // Fewer samples than micro-batches.
    EXPECT_EQ(
        pipeline
            .step(
                torch::ones({3, 4}), torch::zeros({3}, torch::kLong), &loss_of)
            .losses.size(),
        3);
  });
  expect_error<ConfigError>(
      [] {
        run_on_ranks(1, [](const WorldOptions& world) {
          const Accelerator accelerator({.world = world});
          const Net net;
          const Pipeline pipeline(
              accelerator, layers_of(net), {.num_micro_batches = 1});
          pipeline.step(
              torch::ones({4, 4}),
              torch::zeros({4}, torch::kLong),
              [](Tensor x, Tensor) { return x; });
        });
      },
      "the loss function must return one number, but returned 12 numbers");
}

TEST(Pipeline, RefusesAWholeModelWhereThereAreStages) {
  for (const ParallelOptions& parallel :
       {ParallelOptions{.pipeline = 2},
        ParallelOptions{.megatron_lm = MegatronLMOptions{.pp_degree = 2}}}) {
    expect_error<ConfigError>(
        [&] {
          run_on_ranks(2, [&](const WorldOptions& world) {
            const Accelerator accelerator(
                {.parallel = parallel, .world = world});
            accelerator.prepare(Net());
          });
        },
        "pipeline is 2, but argument 1 of prepare() is a whole model; make a "
        "Pipeline of it");
  }
}

// The first and the last stage have tied weights, and both step on them.
TEST(Pipeline, AddsUpGradientsOfTiedWeights) {
  const auto make = [] {
    torch::manual_seed(4);
    return std::pair(torch::nn::Embedding(7, 5), torch::nn::Linear(5, 5));
  };
  const Tensor tokens = (torch::arange(12) * 5 % 7).view({6, 2});
  const Tensor labels = (torch::arange(12) * 3 % 7).view({6, 2});
  const auto loss = [](Tensor logits, Tensor y) {
    return F::cross_entropy(logits.flatten(0, 1), y.flatten());
  };
  auto [embedding, linear] = make();
  torch::optim::SGD alone(
      std::vector<Tensor>{embedding->weight, linear->weight, linear->bias},
      torch::optim::SGDOptions(0.1));
  for (int i = 0; i < 2; ++i) {
    alone.zero_grad();
    for (int m = 0; m < 3; ++m) {
      const Tensor h =
          torch::tanh(linear(embedding(tokens.narrow(0, 2 * m, 2))));
      (loss(h.matmul(embedding->weight.t()), labels.narrow(0, 2 * m, 2)) / 3)
          .backward();
    }
    alone.step();
  }
  const Tensor tied = embedding->weight, last = linear->weight;
  std::mutex mutex;
  run_on_ranks(3, [&](const WorldOptions& world) {
    const Accelerator accelerator(
        {.parallel = {.pipeline = 3}, .world = world});
    std::unique_lock lock(mutex);
    auto [e, l] = make();
    lock.unlock();
    PipelineLayers layers;
    layers.add("embedding", e)
        .add("linear", l)
        .add("tanh", [](Tensor x) { return torch::tanh(x); })
        .add("head", [e = e](Tensor x) { return x.matmul(e->weight.t()); })
        .uses("head.embedding", e);
    const Pipeline pipeline(
        accelerator,
        layers,
        {.split_points = {"linear", "head"}, .num_micro_batches = 3});
    torch::optim::SGD sgd(pipeline.parameters(), torch::optim::SGDOptions(0.1));
    auto optimizer = accelerator.prepare(sgd);
    for (int i = 0; i < 2; ++i) {
      optimizer.zero_grad();
      pipeline.step(tokens, labels, loss);
      optimizer.step();
    }
    if (*world.rank != 1) {
      EXPECT_TRUE(e->weight.allclose(tied, 1e-6, 1e-6));
    } else {
      EXPECT_TRUE(l->weight.allclose(last, 1e-6, 1e-6));
    }
  });
}

}  // namespace pipeline_steps_test
}  // namespace accelerate
