#include <accelerate/accelerate.h>

#include "support/expect_error.h"
#include "support/run_on_ranks.h"

namespace accelerate {
namespace handles_test {

using testing::expect_error;
using testing::run_on_ranks;

WorldOptions alone() { return {.rank = 0, .size = 1, .device = at::kCPU}; }

// An optimizer that reports its destruction.
class ObservedSgd : public torch::optim::SGD {
 public:
  ObservedSgd(std::vector<at::Tensor> parameters, bool& is_destroyed)
      : SGD(std::move(parameters), 0.5), is_destroyed_(is_destroyed) {}
  ~ObservedSgd() override { is_destroyed_ = true; }

 private:
  bool& is_destroyed_;
};

TEST(OwnedOptimizer, LivesAsLongAsItIsPrepared) {
  bool is_destroyed = false;
  const Accelerator accelerator({.world = alone()});
  torch::nn::Linear net(torch::nn::LinearOptions(1, 1).bias(false));
  {
    const torch::NoGradGuard no_grad;
    net->weight.fill_(1);
  }
  auto [model, optimizer] = accelerator.prepare(
      net, std::make_unique<ObservedSgd>(net->parameters(), is_destroyed));
  accelerator.backward(model(torch::ones({1, 1})).sum());
  optimizer.step();
  EXPECT_EQ(net->weight.item<double>(), 0.5);
  EXPECT_FALSE(is_destroyed);
  accelerator.free_memory();
  EXPECT_TRUE(is_destroyed);
}

TEST(OwnedOptimizer, MayBeSharedAndMayComeWithItsScheduler) {
  const Accelerator accelerator({.world = alone()});
  torch::nn::Linear net(1, 1);
  auto sgd = std::make_shared<torch::optim::SGD>(
      net->parameters(), torch::optim::SGDOptions(1.0));
  auto step_lr = std::make_unique<torch::optim::StepLR>(*sgd, 1, 0.5);
  auto [model, optimizer, scheduler] =
      accelerator.prepare(net, sgd, std::move(step_lr));
  EXPECT_EQ(&optimizer.inner(), sgd.get());
  EXPECT_EQ(sgd.use_count(), 2);
  accelerator.backward(model(torch::ones({1, 1})).sum());
  optimizer.step();
  scheduler.step();
  scheduler.step();
  EXPECT_EQ(scheduler.learning_rate(), 0.5);
  accelerator.free_memory();
  EXPECT_EQ(sgd.use_count(), 1);
}

TEST(OwnedOptimizer, StaysTheUsersIfPrepareThrows) {
  const Accelerator accelerator({.world = alone()});
  torch::nn::Linear net(1, 1);
  auto model = accelerator.prepare(net);
  auto sgd = std::make_unique<torch::optim::SGD>(net->parameters(), 0.1);
  expect_error<ConfigError>(
      [&] { accelerator.prepare(net, std::move(sgd)); },
      "must not be repeated or already prepared");
  EXPECT_NE(sgd, nullptr);
  expect_error<ConfigError>(
      [&] { accelerator.prepare(std::unique_ptr<torch::optim::SGD>()); },
      "argument 1 of prepare() is an empty pointer to an optimizer");
}

TEST(LearningRate, IsThatOfEverySchedule) {
  const Accelerator accelerator({.world = alone()});
  torch::nn::Linear net(1, 1);
  torch::optim::SGD sgd(
      {torch::optim::OptimizerParamGroup(
           {net->weight}, std::make_unique<torch::optim::SGDOptions>(1.0)),
       torch::optim::OptimizerParamGroup(
           {net->bias}, std::make_unique<torch::optim::SGDOptions>(4.0))},
      torch::optim::SGDOptions(1.0));
  torch::optim::StepLR step_lr(sgd, 1, 0.5);
  torch::optim::ReduceLROnPlateauScheduler plateau(
      sgd, torch::optim::ReduceLROnPlateauScheduler::min, 0.5F, 0);
  optim::LambdaLR own(sgd, [](std::int64_t) { return 0.25; });
  auto [optimizer, of_torch, of_plateau, of_library] =
      accelerator.prepare(sgd, step_lr, plateau, own);
  EXPECT_EQ(
      optimizer.learning_rate(), sgd.param_groups()[0].options().get_lr());
  EXPECT_EQ(&optimizer.param_groups(), &sgd.param_groups());
  const std::vector<double> now{0.25, 1};
  EXPECT_EQ(of_library.get_last_lr(), now);
  EXPECT_EQ(of_torch.get_last_lr(), now);
  EXPECT_EQ(of_plateau.get_last_lr(), now);
  EXPECT_EQ(of_torch.learning_rate(), 0.25);
  of_torch.step();
  of_torch.step();
  EXPECT_EQ(of_torch.get_last_lr(), (std::vector<double>{0.125, 0.5}));
  torch::optim::SGD other(net->parameters(), 0.1);
  auto second = accelerator.prepare(other);
  const Scheduler& ambiguous = of_plateau;
  expect_error<ConfigError>(
      [&] { static_cast<void>(ambiguous.get_last_lr()); },
      "which of 2 prepared optimizers");
  EXPECT_EQ(of_torch.learning_rate(), 0.125);
}

struct Net : torch::nn::Module {
  Net() {
    first = register_module("first", torch::nn::Linear(2, 2));
    register_buffer("count", torch::zeros({1}));
  }
  at::Tensor forward(const at::Tensor& x) { return first(x); }
  torch::nn::Linear first = nullptr;
};

TEST(ModelHandle, ShowsTheModulesTensors) {
  const Accelerator accelerator({.world = alone()});
  const auto net = std::make_shared<Net>();
  auto model = accelerator.prepare(net);
  EXPECT_EQ(model.named_parameters().keys(), net->named_parameters().keys());
  EXPECT_TRUE(model.named_parameters(/*recurse=*/false).is_empty());
  EXPECT_TRUE(model.named_buffers().contains("count"));
  EXPECT_EQ(model.buffers().size(), 1U);
  const WeightList state = model.state_dict();
  ASSERT_EQ(state.size(), 3U);
  EXPECT_EQ(state[0].first, "count");
  EXPECT_TRUE(state[1].second.is_same(net->first->weight));
  EXPECT_EQ(extract_model_from_parallel(model), net);
  model.eval();
  EXPECT_FALSE(model.is_training());
  EXPECT_FALSE(model->first->is_training());
  model.train();
  EXPECT_TRUE(net->first->is_training());
}

TEST(ModelHandle, DropsGradientsOnAllRanks) {
  for (const bool shards : {false, true}) {
    run_on_ranks(2, [&](const WorldOptions& world) {
      AcceleratorOptions options;
      options.world = world;
      if (shards) options.parallel.shard = 2;
      const Accelerator accelerator(options);
      torch::nn::Linear net(8, 8);
      torch::optim::SGD sgd(net->parameters(), 1.0);
      auto [model, optimizer] = accelerator.prepare(net, sgd);
      accelerator.backward(model(torch::ones({2, 8})).sum());
      model.zero_grad();
      for (const auto& group : sgd.param_groups()) {
        for (const at::Tensor& parameter : group.params())
          EXPECT_FALSE(parameter.grad().defined());
      }
      for (const at::Tensor& parameter : model.parameters())
        EXPECT_FALSE(parameter.grad().defined());
      // A later step still works, and model.state_dict() is collective.
      accelerator.backward(model(torch::ones({2, 8})).sum());
      optimizer.step();
      const WeightList state = model.state_dict();
      EXPECT_EQ(state.size(), shards && world.rank != 0 ? 0U : 2U);
      accelerator.finish();
    });
  }
}

TEST(ModelHandle, SetsGradientsToZeroInPlace) {
  const Accelerator accelerator({.world = alone()});
  torch::nn::Linear net(2, 2);
  auto model = accelerator.prepare(net);
  accelerator.backward(model(torch::ones({1, 2})).sum());
  const at::Tensor gradient = net->weight.grad();
  model.zero_grad(/*set_to_none=*/false);
  EXPECT_TRUE(net->weight.grad().is_same(gradient));
  EXPECT_EQ(gradient.abs().sum().item<double>(), 0);
}

TEST(GatherForMetrics, JoinsTensorsOfOtherShapesAsObjects) {
  for (const int num_ranks : {1, 2, 3}) {
    run_on_ranks(num_ranks, [&](const WorldOptions& world) {
      const Accelerator accelerator({.world = world});
      auto loader = accelerator.prepare(
          DataLoader(TensorDataset{torch::arange(7)}, {.batch_size = 2}));
      std::vector<std::int64_t> lengths;
      for (auto& [x] : loader) {
        // Sample i has a tensor of i elements.
        std::vector<at::Tensor> of_batch;
        for (std::int64_t i = 0; i < x.size(0); ++i)
          of_batch.push_back(torch::zeros({x[i].item<std::int64_t>()}));
        for (const at::Tensor& tensor : accelerator.gather_for_metrics(
                 of_batch, {.use_gather_object = true})) {
          lengths.push_back(tensor.numel());
        }
      }
      EXPECT_THAT(lengths, ::testing::ElementsAre(0, 1, 2, 3, 4, 5, 6))
          << num_ranks;
    });
  }
}

struct Result {
  at::Tensor value;
};
template <class Visitor>
void visit_tensors(Result& result, Visitor&& visitor) {
  visitor(result.value);
}

TEST(GatherForMetrics, RefusesObjectsOfTypesThatCannotBeSent) {
  const Accelerator accelerator({.world = alone()});
  const std::vector<Result> results{{torch::ones({1})}};
  EXPECT_EQ(accelerator.gather_for_metrics(results).size(), 1U);
  expect_error<ConfigError>(
      [&] {
        accelerator.gather_for_metrics(results, {.use_gather_object = true});
      },
      "cannot be sent as objects");
}

TEST(Accelerator, BroadcastsListsAndGathersInBraces) {
  run_on_ranks(2, [](const WorldOptions& world) {
    const Accelerator accelerator({.world = world});
    const int rank = accelerator.process_index();
    EXPECT_EQ(
        broadcast_object_list(
            std::vector<int>{rank, rank}, accelerator.world().group(), 1),
        (std::vector<int>{1, 1}));
    EXPECT_EQ(
        gather_object({std::to_string(rank)}, accelerator.mesh().batch_group()),
        (std::vector<std::string>{"0", "1"}));
    const auto all =
        accelerator.gather({torch::full({1}, rank), torch::ones({1})});
    EXPECT_TRUE(torch::equal(all[0], torch::tensor({0, 1})));
  });
}

TEST(ShouldReduceBatchSize, IsTrueForMemoryThatRanOut) {
  EXPECT_TRUE(should_reduce_batch_size(std::bad_alloc()));
  EXPECT_FALSE(should_reduce_batch_size(std::runtime_error("mine")));
}

}  // namespace handles_test
}  // namespace accelerate
