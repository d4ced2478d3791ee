#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <atomic>
#include <map>
#include <mutex>

#include <accelerate/accelerator.h>
#include <accelerate/error.h>
#include <accelerate/pipeline.h>

#include "support/expect_error.h"
#include "support/named_weights.h"
#include "support/run_on_ranks.h"

namespace accelerate {
namespace pipeline_steps_test {

namespace F = torch::nn::functional;
using at::Tensor;
using ::testing::ElementsAre;
using testing::expect_error;
using testing::run_on_ranks;
using testing::Weights;

struct BlockImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) { return x + torch::tanh(linear(norm(x))); }
  torch::nn::LayerNorm norm = register_module(
      "norm",
      torch::nn::LayerNorm(torch::nn::LayerNormOptions({6})));
  torch::nn::Linear linear = register_module("linear", torch::nn::Linear(6, 6));
};
TORCH_MODULE(Block);

struct NetImpl : torch::nn::Module {
  NetImpl() {
    for (int i = 0; i < 6; ++i) blocks->push_back(Block());
    register_module("blocks", blocks);
  }
  Tensor forward(const Tensor& x) {
    Tensor h = first(x);
    for (const auto& block : *blocks) h = block->as<Block>()->forward(h);
    return head(torch::relu(h));
  }
  torch::nn::Linear first = register_module("first", torch::nn::Linear(4, 6));
  torch::nn::ModuleList blocks;
  torch::nn::Linear head = register_module("head", torch::nn::Linear(6, 3));
};
TORCH_MODULE(Net);

PipelineLayers layers_of(const Net& net) {
  PipelineLayers layers;
  layers.add("first", net->first)
      .add_each<BlockImpl>("blocks", *net->blocks)
      .add("relu", [](Tensor x) { return torch::relu(x); })
      .add("head", net->head);
  return layers;
}

void copy_weights(const Net& from, const Net& to) {
  const torch::NoGradGuard no_grad;
  const auto weights = from->named_parameters();
  for (auto& item : to->named_parameters())
    item.value().copy_(weights[item.key()]);
}

Tensor loss_of(const Tensor& output, const Tensor& labels) {
  return F::cross_entropy(output, labels);
}

constexpr int kSteps = 3;
constexpr std::int64_t kRows = 12;

struct Data {
  Tensor inputs;
  Tensor labels;
};

Data data() {
  torch::manual_seed(5);
  return {
      torch::randn({kSteps * kRows, 4}),
      torch::randint(3, {kSteps * kRows}, torch::kLong)};
}

Net make_net() {
  torch::manual_seed(3);
  return {};
}

// Weights and losses of a training.
struct Trained {
  Weights weights;
  std::vector<double> losses;
};

// One process, micro-batch by micro-batch.
Trained train_alone(int num_micro_batches) {
  const Data all = data();
  Net net = make_net();
  torch::optim::SGD sgd(
      net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  Trained trained;
  for (int step = 0; step < kSteps; ++step) {
    sgd.zero_grad();
    const auto x = all.inputs.narrow(0, step * kRows, kRows);
    const auto y = all.labels.narrow(0, step * kRows, kRows);
    const auto xs = x.tensor_split(num_micro_batches);
    const auto ys = y.tensor_split(num_micro_batches);
    Tensor total;
    for (std::size_t i = 0; i < xs.size(); ++i) {
      const double weight =
          static_cast<double>(xs[i].size(0)) / static_cast<double>(kRows);
      const Tensor loss = loss_of(net->forward(xs[i]), ys[i]);
      (weight == 1 ? loss : loss * weight).backward();
      const Tensor share = loss.detach() * weight;
      total = total.defined() ? total + share : share;
    }
    trained.losses.push_back(total.item<double>());
    sgd.step();
  }
  for (const auto& item : net->named_parameters())
    trained.weights[item.key()] = item.value().detach().clone();
  return trained;
}

struct Setting {
  int num_ranks = 2;
  std::string schedule = "1F1B";
  int num_chunks = 1;
  int num_micro_batches = 2;
  bool recomputes = false;
};

Trained train_in_stages(const Setting& setting) {
  const Data all = data();
  Net first = make_net();
  Trained trained;
  std::mutex mutex;
  run_on_ranks(setting.num_ranks, [&](const WorldOptions& world) {
    AcceleratorOptions options{
        .parallel = {.pipeline = setting.num_ranks}, .world = world};
    if (setting.recomputes)
      options.parallel.activation_checkpointing =
          ActivationCheckpointingOptions{};
    const Accelerator accelerator(options);
    const Net net;
    copy_weights(first, net);
    const Pipeline pipeline(
        accelerator,
        layers_of(net),
        {.schedule = setting.schedule,
         .num_chunks = setting.num_chunks,
         .num_micro_batches = setting.num_micro_batches});
    torch::optim::SGD sgd(
        pipeline.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    auto optimizer = accelerator.prepare(sgd);
    std::vector<double> losses;
    for (int step = 0; step < kSteps; ++step) {
      optimizer.zero_grad();
      const PipelineResult result = pipeline.step(
          all.inputs.narrow(0, step * kRows, kRows),
          all.labels.narrow(0, step * kRows, kRows),
          &loss_of);
      EXPECT_EQ(result.losses.size(), setting.num_micro_batches);
      EXPECT_EQ(result.loss.scalar_type(), torch::kFloat);
      losses.push_back(result.loss.item<double>());
      optimizer.step();
    }
    const std::lock_guard lock(mutex);
    if (trained.losses.empty()) trained.losses = losses;
    EXPECT_EQ(trained.losses, losses);
    for (const auto& item : pipeline.model().named_parameters())
      trained.weights[item.key()] = item.value().detach().clone();
  });
  return trained;
}

void expect_same(const Trained& found, const Trained& expected) {
  EXPECT_EQ(found.losses, expected.losses);
  ASSERT_EQ(found.weights.size(), expected.weights.size());
  for (const auto& [name, weight] : expected.weights) {
    ASSERT_TRUE(found.weights.contains(name)) << name;
    EXPECT_TRUE(found.weights.at(name).equal(weight)) << name;
  }
}

struct ScheduleCase {
  std::string name;
  int num_chunks;
};

class PipelineParity : public ::testing::TestWithParam<ScheduleCase> {};

TEST_P(PipelineParity, EqualsOneProcess) {
  std::map<int, Trained> alone;
  for (const int stages : {2, 3, 4}) {
    for (const int micro_batches : {stages, 2 * stages, 5}) {
      const bool is_possible =
          GetParam().num_chunks == 1 || micro_batches % stages == 0;
      if (!is_possible) continue;
      if (!alone.contains(micro_batches))
        alone[micro_batches] = train_alone(micro_batches);
      for (const bool recomputes : {false, true}) {
        SCOPED_TRACE(
            std::to_string(stages) + " stages, " +
            std::to_string(micro_batches) + " micro-batches" +
            (recomputes ? ", recomputed" : ""));
        expect_same(
            train_in_stages(
                {stages,
                 GetParam().name,
                 GetParam().num_chunks,
                 micro_batches,
                 recomputes}),
            alone[micro_batches]);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Schedules,
    PipelineParity,
    ::testing::Values(
        ScheduleCase{"GPipe", 1},
        ScheduleCase{"1F1B", 1},
        ScheduleCase{"Interleaved1F1B", 2},
        ScheduleCase{"ZBH1", 1}),
    [](const auto& chosen) { return "Schedule" + chosen.param.name; });

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
      [] { train_in_stages({4, "Interleaved1F1B", 2, 3, false}); },
      "Interleaved1F1B needs a multiple of 4 micro-batches");
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
          {.schedule = schedule,
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
          step, "the pipeline cannot be used any more, since stage");
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
        torch::ones({4, 4}),
        torch::ones({3}),
        &loss_of,
        "tensors of 4 and of 3 samples");
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
      "the loss function returned 12 numbers");
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

// Tied weights of the first and the last stage, which both step on them.
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
      EXPECT_TRUE(e->weight.allclose(embedding->weight, 1e-6, 1e-6));
    } else {
      EXPECT_TRUE(l->weight.allclose(linear->weight, 1e-6, 1e-6));
    }
  });
}

}  // namespace pipeline_steps_test
}  // namespace accelerate
