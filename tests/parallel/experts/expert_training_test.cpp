// Training with experts on several ranks: equal to training in one process or,
// where each rank drops its own tokens, to training with all experts on every
// rank.
#include <cmath>

#include <accelerate/accelerate.h>

#include "support/expect_error.h"
#include "support/expert_net.h"

namespace accelerate {
namespace expert_training_test {

using testing::expect_error;
using testing::expect_like;
using testing::ExpertGrid;
using testing::ExpertNet;
using testing::ExpertNetOptions;
using testing::ExpertOutcome;
using testing::ExpertRun;
using testing::outcome_of;
using testing::run_expert_net;
using testing::run_on_ranks;
using testing::train_expert_net;
using torch::Tensor;

constexpr double kTolerance = 3e-5;

ExpertRun on(ExpertRun run, const ExpertGrid& grid) {
  run.grid = grid;
  return run;
}

void expect_like_one_process(
    const ExpertRun& run,
    const std::vector<ExpertGrid>& grids,
    double tolerance = kTolerance) {
  const ExpertOutcome expected = outcome_of(on(run, {}));
  for (const ExpertGrid& grid : grids) {
    SCOPED_TRACE(grid.name());
    expect_like(expected, outcome_of(on(run, grid)), tolerance);
  }
}

const std::vector<ExpertGrid> kGrids{
    {.replicate = 2, .expert = 2},
    {.shard = 2, .expert = 2},
    {.replicate = 3, .expert = 3},
    {.replicate = 4, .expert = 2},
    {.replicate = 4, .expert = 4},
    {.shard = 4, .expert = 2},
    {.shard = 4, .expert = 4},
    {.replicate = 2, .shard = 2, .expert = 2},
    {.replicate = 2, .shard = 2, .expert = 4}};

const std::vector<ExpertGrid> kFewGrids{
    {.replicate = 2, .expert = 2},
    {.replicate = 4, .expert = 2},
    {.shard = 4, .expert = 2},
    {.replicate = 2, .shard = 2, .expert = 4}};

TEST(ExpertTraining, IsThatOfOneProcess) {
  for (const bool by_modules : {false, true}) {
    SCOPED_TRACE(by_modules ? "modules" : "mlp");
    expect_like_one_process({.net = {.by_modules = by_modules}}, kGrids);
  }
}

TEST(ExpertTraining, TakesAnyNumberOfExperts) {
  for (const bool by_modules : {false, true}) {
    // Fewer experts than ranks, and numbers that do not divide among ranks.
    for (const std::int64_t num_experts : {1, 2, 3, 5, 7}) {
      SCOPED_TRACE(num_experts);
      expect_like_one_process(
          {.net =
               {.num_experts = num_experts,
                .by_modules = by_modules,
                .shares = false,
                .router = {.top_k = 1, .normalize_weights = false}},
           .steps = 2},
          kFewGrids);
    }
  }
}

TEST(ExpertTraining, AveragesWhereNothingIsDivided) {
  // The balance loss also counts the tokens of all ranks here.
  expect_like_one_process(
      {},
      {{.replicate = 2},
       {.replicate = 3},
       {.shard = 2},
       {.replicate = 2, .shard = 2},
       {.context = 2}});
}

TEST(ExpertTraining, DropsTheTokensOfEachRankAlike) {
  for (const TokenDrop drop :
       {TokenDrop::lowest_weight, TokenDrop::last_position}) {
    for (const bool by_modules : {false, true}) {
      ExpertRun run{.net = {.by_modules = by_modules}};
      run.net.router.capacity_factor = 0.7;
      run.net.router.drop = drop;
      for (const ExpertGrid& grid : kGrids) {
        SCOPED_TRACE(grid.name());
        ExpertGrid together = grid;
        together.expert = 1;
        expect_like(
            outcome_of(on(run, together)), outcome_of(on(run, grid)), 1e-5);
      }
    }
  }
}

TEST(ExpertTraining, AccumulatesAndRecomputes) {
  for (const bool by_modules : {false, true}) {
    expect_like_one_process(
        {.net = {.by_modules = by_modules}, .steps = 3, .window = 3},
        kFewGrids);
    expect_like_one_process(
        {.net = {.by_modules = by_modules},
         .steps = 3,
         .window = 2,
         .recomputes = true},
        kFewGrids);
  }
}

TEST(ExpertTraining, WorksInMixedPrecision) {
  for (const Precision precision : {Precision::bf16, Precision::fp16}) {
    for (const bool by_modules : {false, true}) {
      SCOPED_TRACE(name_of(precision));
      ExpertRun run{
          .net = {.by_modules = by_modules},
          .steps = 2,
          .precision = precision};
      run.net.router.top_k = 4;                  // rounding changes no choice
      run.options.grad_scaler.init_scale = 256;  // nothing overflows
      expect_like_one_process(run, kFewGrids, 2e-2);
      run.recomputes = true;
      expect_like_one_process(run, {{.shard = 4, .expert = 2}}, 2e-2);
    }
  }
}

TEST(ExpertTraining, StepsOnMasterWeights) {
  ExpertRun run{.steps = 2, .parameter_dtype = torch::kBFloat16};
  run.net.router.top_k = 4;
  run.options.master_weights = true;
  expect_like_one_process(run, kFewGrids, 2e-2);
}

TEST(ExpertTraining, StepsWithAdam) {
  for (const bool by_modules : {false, true})
    expect_like_one_process(
        {.net = {.by_modules = by_modules}, .adam = true}, kFewGrids, 1e-4);
}

TEST(ExpertTraining, WorksWithEveryStageOfZero) {
  for (const int stage : {1, 2, 3}) {
    SCOPED_TRACE(stage);
    ExpertRun run{.window = 2};
    const ExpertOutcome expected = outcome_of(run);
    run.options.parallel.deepspeed = DeepSpeedOptions{.zero_stage = stage};
    for (const ExpertGrid& grid :
         {ExpertGrid{.shard = 2, .expert = 2},
          ExpertGrid{.shard = 4, .expert = 2},
          ExpertGrid{.replicate = 2, .shard = 2, .expert = 2}}) {
      SCOPED_TRACE(grid.name());
      expect_like(expected, outcome_of(on(run, grid)), kTolerance);
    }
  }
}

TEST(ExpertTraining, CombinesWithContextAndTensor) {
  for (const bool by_modules : {false, true}) {
    expect_like_one_process(
        {.net = {.by_modules = by_modules}},
        {{.tensor = 2},
         {.tensor = 3},
         {.replicate = 2, .expert = 2, .tensor = 2},
         {.shard = 2, .expert = 2, .tensor = 2},
         {.replicate = 2, .expert = 2, .context = 2},
         {.shard = 2, .expert = 2, .context = 2}});
  }
}

TEST(ExpertTraining, ComputesWholeExpertsIfMegatronSaysSo) {
  ExpertRun run{.steps = 2};
  // Megatron-LM's settings clip to 1 by default.
  const ExpertOutcome expected = outcome_of(run);
  for (const int split : {1, 2}) {
    run.options.parallel.parallelize_plan = ParallelizePlan{};
    run.options.parallel.megatron_lm = MegatronLMOptions{
        .tp_degree = 2,
        .expert_model_parallel_size = 2,
        .expert_tensor_parallel_size = split,
        .gradient_clipping = 0};
    run.grid = {.replicate = 2, .expert = 2, .tensor = 2};
    expect_like(expected, outcome_of(run), kTolerance);
    run_expert_net(run, [&](const auto&, auto& model, auto&) {
      EXPECT_EQ(
          model->named_parameters()["blocks.0.experts.experts.up_proj"].size(1),
          6 / split);
    });
  }
}

TEST(ExpertTraining, BalancesTheTokensOfEachRankIfToldTo) {
  // Each of two ranks sends all its tokens to one expert, a different one per
  // rank: each is as unbalanced as can be, but both together are balanced.
  const auto loss_with = [](BalanceScope scope) {
    double loss = 0;
    run_on_ranks(2, [&](const WorldOptions& world) {
      const Accelerator accelerator({.world = world});
      ExpertLayer layer(ExpertLayerOptions{
          .hidden_size = 2,
          .num_experts = 2,
          .router =
              {.top_k = 1,
               .balance_loss_coefficient = 1,
               .balance_scope = scope},
          .mlp = ExpertMlpOptions{.intermediate_size = 2}});
      {
        const torch::NoGradGuard no_grad;
        layer->named_parameters()["gate.weight"].copy_(20 * torch::eye(2));
      }
      const auto model = accelerator.prepare(layer);
      const Tensor x = torch::zeros({4, 2});
      x.select(1, accelerator.process_index()).fill_(1);
      static_cast<void>(model(x));
      const Tensor mean = layer->balance_loss().clone();
      accelerator.mesh().gradient_group().all_reduce(mean, ReduceOp::mean);
      if (accelerator.is_main_process()) loss = mean.item<double>();
    });
    return loss;
  };
  EXPECT_NEAR(loss_with(BalanceScope::all_ranks), 1, 1e-5);
  EXPECT_NEAR(loss_with(BalanceScope::rank), 2, 1e-5);
}

// The gradient of the balance loss where rank r has tokens[r] of 8 tokens.
Tensor balance_gradient(const std::vector<std::int64_t>& tokens) {
  Tensor gradient;
  run_on_ranks(static_cast<int>(tokens.size()), [&](const WorldOptions& world) {
    const Accelerator accelerator({.world = world});
    ExpertLayer layer(ExpertLayerOptions{
        .hidden_size = 2,
        .num_experts = 2,
        .router =
            {.top_k = 1,
             .balance_loss_coefficient = 1,
             .z_loss_coefficient = 0.5},
        .mlp = ExpertMlpOptions{.intermediate_size = 2}});
    {
      const torch::NoGradGuard no_grad;
      for (const Tensor& parameter : layer->parameters())
        parameter.copy_(torch::sin(torch::arange(parameter.numel()))
                            .view(parameter.sizes()));
    }
    const auto model = accelerator.prepare(layer);
    std::int64_t first = 0;
    for (int rank = 0; rank < accelerator.process_index(); ++rank)
      first += tokens[static_cast<std::size_t>(rank)];
    const auto count =
        tokens[static_cast<std::size_t>(accelerator.process_index())];
    const Tensor x =
        torch::cos(torch::arange(16)).view({8, 2}).narrow(0, first, count);
    const Tensor outputs = model(x);
    accelerator.backward(
        outputs.sum() * 0 + auxiliary_loss(*layer), {.num_items = count});
    if (accelerator.is_main_process())
      gradient = layer->named_parameters()["gate.weight"].grad().clone();
  });
  return gradient;
}

TEST(ExpertTraining, BalancesUnequalNumbersOfTokensByTheirNumbers) {
  const Tensor expected = balance_gradient({8});
  EXPECT_GT(expected.abs().max().item<double>(), 1e-3);
  for (const std::vector<std::int64_t>& tokens :
       std::vector<std::vector<std::int64_t>>{
           {4, 4}, {5, 3}, {8, 0}, {1, 0, 7}}) {
    EXPECT_TRUE(torch::allclose(balance_gradient(tokens), expected, 1e-5, 1e-7))
        << tokens;
  }
}

TEST(ExpertTraining, CombinesAllAxesOnEightAndSixteenRanks) {
  expect_like_one_process(
      {.steps = 2},
      {{.replicate = 2, .expert = 2, .context = 2, .tensor = 2},
       {.shard = 2, .expert = 2, .context = 2, .tensor = 2},
       {.replicate = 2, .shard = 2, .expert = 4, .tensor = 2},
       {2, 2, 2, 2, 2},
       {2, 2, 4, 2, 2}});
}

// Rank 0 gets all samples.
TEST(ExpertTraining, GoesOnIfARankHasNoTokens) {
  for (const bool by_modules : {false, true}) {
    for (const bool recomputes : {false, true}) {
      const auto weights_on = [&](const ExpertGrid& grid) {
        testing::Weights weights;
        run_expert_net(
            {.grid = grid,
             .net = {.by_modules = by_modules},
             .recomputes = recomputes},
            [&](const auto& accelerator, auto& model, auto& optimizer) {
              const int ranks = accelerator.mesh().batch_count();
              for (int step = 0; step < 3; ++step) {
                const Tensor all =
                    torch::sin(torch::arange(8 * 6) * 0.7 + step).view({8, 6});
                const Tensor mine = accelerator.mesh().batch_rank() == 0
                    ? all
                    : all.narrow(0, 0, 0);
                // The mean over the ranks is the mean over the samples.
                const Tensor outputs = model(mine);
                const Tensor loss = outputs.square().sum() * ranks / 8.0 +
                    auxiliary_loss(*model.module()) * ranks;
                // Small enough for weights not to grow without bound.
                accelerator.backward(loss / 32);
                optimizer.step();
                optimizer.zero_grad();
              }
              const auto own = testing::named(
                  accelerator.get_state_dict(model, {.rank0_only = false}));
              if (accelerator.is_main_process()) weights = own;
            });
        return weights;
      };
      const auto expected = weights_on({});
      for (const ExpertGrid& grid : kFewGrids) {
        SCOPED_TRACE(grid.name());
        for (const auto& [name, weight] : weights_on(grid))
          EXPECT_TRUE(
              torch::allclose(weight, expected.at(name), 1e-4, kTolerance))
              << name;
      }
    }
  }
}

TEST(ExpertTraining, LeavesUnchosenExpertsAlone) {
  // For any token, one of the first two logits is above the others, which are
  // 0.
  const auto weights_on = [](const ExpertGrid& grid) {
    testing::Weights weights;
    run_on_ranks(grid.num_ranks(), [&](const WorldOptions& world) {
      const Accelerator accelerator(
          testing::accelerator_options({.grid = grid}, world));
      ExpertNet net(
          ExpertNetOptions{.by_modules = true, .router = {.top_k = 1}});
      {
        const torch::NoGradGuard no_grad;
        for (auto& item : net->named_parameters()) {
          if (!item.key().ends_with("gate.weight")) continue;
          const Tensor& weight = item.value();
          weight.requires_grad_(false);
          weight[1].copy_(-weight[0]);
          weight.narrow(0, 2, 2).zero_();
        }
      }
      torch::optim::SGD sgd(net->parameters(), 0.1);
      const auto [model, optimizer] = accelerator.prepare(net, sgd);
      ExpertOutcome ignored;
      train_expert_net(accelerator, model, optimizer, 0, 3, ignored);
      const auto own = testing::named(
          accelerator.get_state_dict(model, {.rank0_only = false}));
      if (accelerator.is_main_process()) weights = own;
    });
    return weights;
  };
  const auto expected = weights_on({});
  const auto found = weights_on({.replicate = 2, .expert = 2});
  const testing::Weights first = testing::named(
      get_state_dict(*ExpertNet(ExpertNetOptions{.by_modules = true})));
  int num_left = 0;
  for (const auto& [name, weight] : found) {
    EXPECT_TRUE(torch::allclose(weight, expected.at(name), 1e-4, 1e-5)) << name;
    if (name.find("experts.experts.3") == std::string::npos) continue;
    ++num_left;
    EXPECT_TRUE(torch::equal(weight, first.at(name))) << name;
  }
  EXPECT_EQ(num_left, 8);
}

TEST(ExpertTraining, RunsBackwardOnRanksWhoseExpertsAreFrozen) {
  const auto weights_on = [](const ExpertGrid& grid) {
    testing::Weights weights;
    run_on_ranks(grid.num_ranks(), [&](const WorldOptions& world) {
      const Accelerator accelerator(
          testing::accelerator_options({.grid = grid}, world));
      ExpertNet net(ExpertNetOptions{.by_modules = true});
      for (auto& item : net->named_parameters()) {
        // Freezes all experts of the second rank.
        if (item.key().find("experts.experts.2") != std::string::npos ||
            item.key().find("experts.experts.3") != std::string::npos)
          item.value().requires_grad_(false);
      }
      torch::optim::SGD sgd(net->parameters(), 0.1);
      const auto [model, optimizer] = accelerator.prepare(net, sgd);
      ExpertOutcome ignored;
      train_expert_net(accelerator, model, optimizer, 0, 2, ignored);
      const auto own = testing::named(
          accelerator.get_state_dict(model, {.rank0_only = false}));
      if (accelerator.is_main_process()) weights = own;
    });
    return weights;
  };
  const auto expected = weights_on({});
  for (const ExpertGrid& grid :
       {ExpertGrid{.replicate = 2, .expert = 2},
        ExpertGrid{.shard = 2, .expert = 2}}) {
    for (const auto& [name, weight] : weights_on(grid))
      EXPECT_TRUE(torch::allclose(weight, expected.at(name), 1e-4, kTolerance))
          << name;
  }
}

// The ranks that hold other experts see no change.
TEST(ExpertTraining, FreezesSomeExpertsAfterTheFirstStep) {
  const auto weights_on = [](const ExpertGrid& grid) {
    testing::Weights weights;
    run_on_ranks(grid.num_ranks(), [&](const WorldOptions& world) {
      const Accelerator accelerator(
          testing::accelerator_options({.grid = grid}, world));
      ExpertNet net(ExpertNetOptions{.by_modules = true});
      torch::optim::SGD sgd(net->parameters(), 0.1);
      const auto [model, optimizer] = accelerator.prepare(net, sgd);
      ExpertOutcome ignored;
      train_expert_net(accelerator, model, optimizer, 0, 1, ignored);
      for (auto& item : net->named_parameters()) {
        if (item.key().find("experts.experts.3") != std::string::npos)
          item.value().requires_grad_(false);
      }
      train_expert_net(accelerator, model, optimizer, 1, 3, ignored);
      const auto own = testing::named(
          accelerator.get_state_dict(model, {.rank0_only = false}));
      if (accelerator.is_main_process()) weights = own;
    });
    return weights;
  };
  const auto expected = weights_on({});
  for (const auto& [name, weight] : weights_on({.replicate = 4, .expert = 2})) {
    EXPECT_TRUE(torch::allclose(weight, expected.at(name), 1e-4, kTolerance))
        << name;
  }
}

TEST(ExpertTraining, EvaluatesWithoutGradients) {
  run_expert_net(
      {.grid = {.replicate = 2, .expert = 2}},
      [](const auto&, auto& model, auto&) {
        ExpertNet whole{ExpertNetOptions{}};
        const torch::NoGradGuard no_grad;
        const Tensor x = torch::randn({5, testing::kNetInputs});
        EXPECT_TRUE(torch::allclose(model(x), whole->forward(x), 1e-4, 1e-5));
        model.eval();
        EXPECT_TRUE(torch::allclose(model(x), whole->forward(x), 1e-4, 1e-5));
      });
}

TEST(ExpertTraining, CountsTheLoadOfAllRanks) {
  for (const ExpertGrid& grid :
       {ExpertGrid{},
        ExpertGrid{.replicate = 2},
        ExpertGrid{.shard = 2, .expert = 2, .tensor = 2}}) {
    run_expert_net(
        {.grid = grid},
        [](const auto& accelerator, auto& model, auto& optimizer) {
          ExpertOutcome ignored;
          train_expert_net(accelerator, model, optimizer, 0, 2, ignored);
          const auto loads = model.expert_loads();
          ASSERT_EQ(loads.size(), 2);
          EXPECT_EQ(loads[0].layer, "blocks.0.experts");
          std::int64_t sum = 0;
          for (const std::int64_t assigned : loads[1].assigned) sum += assigned;
          EXPECT_EQ(sum, 2 * 2 * testing::kNetSamples * testing::kNetPositions);
          const auto none = model.expert_loads();
          EXPECT_EQ(none[0].assigned, (std::vector<std::int64_t>(4, 0)));
        });
  }
}

TEST(ExpertTraining, ShowsAndChangesFullParameters) {
  for (const bool by_modules : {false, true}) {
    for (const ExpertGrid& grid :
         {ExpertGrid{.replicate = 2, .expert = 2},
          ExpertGrid{.shard = 4, .expert = 2},
          ExpertGrid{.shard = 2, .expert = 2, .tensor = 2}}) {
      SCOPED_TRACE(grid.name());
      run_expert_net(
          {.grid = grid, .net = {.by_modules = by_modules}},
          [&](const auto& accelerator, auto& model, auto& optimizer) {
            const ExpertNet whole{ExpertNetOptions{.by_modules = by_modules}};
            const auto expected = whole->named_parameters();
            {
              const auto scope = model.full_parameters();
              for (const auto& item : model.named_parameters()) {
                EXPECT_TRUE(torch::equal(item.value(), expected[item.key()]))
                    << item.key();
                const torch::NoGradGuard no_grad;
                if (item.key().find("experts.experts") != std::string::npos)
                  at::Tensor(item.value()).mul_(2);
              }
              // Experts are still computed on the same ranks.
              const torch::NoGradGuard no_grad;
              for (auto& item : whole->named_parameters()) {
                if (item.key().find("experts.experts") != std::string::npos)
                  item.value().mul_(2);
              }
              const Tensor x = torch::ones({2, testing::kNetInputs});
              EXPECT_TRUE(torch::allclose(
                  model(x), whole.ptr()->forward(x), 1e-4, 1e-5));
            }
            for (const auto& [name, tensor] :
                 accelerator.get_state_dict(model, {.rank0_only = false}))
              EXPECT_TRUE(torch::equal(tensor, expected[name])) << name;
            ExpertOutcome ignored;
            train_expert_net(accelerator, model, optimizer, 0, 1, ignored);
          });
    }
  }
}

TEST(ExpertTraining, BeginsWithTheValuesOfRank0) {
  // Only rank 0 has values.
  for (const bool by_modules : {false, true}) {
    for (const ExpertGrid& grid :
         {ExpertGrid{.shard = 2, .expert = 2},
          ExpertGrid{.shard = 4, .expert = 2},
          ExpertGrid{.shard = 2, .expert = 2, .tensor = 2}}) {
      run_on_ranks(grid.num_ranks(), [&](const WorldOptions& world) {
        const ExpertNetOptions options{.by_modules = by_modules};
        const Accelerator accelerator(
            testing::accelerator_options({.grid = grid}, world));
        const auto net = accelerator.is_main_process()
            ? std::make_shared<testing::ExpertNetImpl>(options)
            : init_empty_weights([&] {
                return std::make_shared<testing::ExpertNetImpl>(options);
              });
        const auto model = accelerator.prepare(net);
        const auto expected = ExpertNet(options)->named_parameters();
        for (const auto& [name, tensor] :
             accelerator.get_state_dict(model, {.rank0_only = false}))
          EXPECT_TRUE(torch::equal(tensor, expected[name])) << name;
      });
    }
  }
}

TEST(ExpertTraining, RefusesWhatItCannotDo) {
  run_expert_net(
      {.grid = {.replicate = 2, .expert = 2}},
      [](const auto& accelerator, auto& model, auto& optimizer) {
        expect_error<ConfigError>(
            [&] { accelerator.join_uneven_inputs([] {}); },
            "all must take every step; use even_batches");
        expect_error<ConfigError>(
            [&] { LocalSGD(accelerator, model, {.local_sgd_steps = 2}); },
            "ranks that share experts need equal ones; set expert to 1");
        const Tensor x = torch::ones({2, testing::kNetInputs}).requires_grad_();
        const Tensor y = model(x).sum();
        expect_error<ConfigError>(
            [&] {
              static_cast<void>(torch::autograd::grad(
                  {y}, {x}, {}, /*retain_graph=*/true, /*create_graph=*/true));
            },
            "second derivatives through the tokens of experts");
        static_cast<void>(optimizer);
      });
  run_on_ranks(2, [](const WorldOptions& world) {
    expect_error<ConfigError>(
        [&] { Accelerator({.parallel = {.expert = 3}, .world = world}); },
        "expert is 3, but the experts are divided among the ranks that read "
        "different data");
    struct Scalar : torch::nn::Module {
      Scalar() { scale = register_parameter("scale", torch::ones({})); }
      Tensor forward(const Tensor& x) { return x * scale; }
      Tensor scale;
    };
    Accelerator accelerator({.parallel = {.expert = 2}, .world = world});
    expect_error<ConfigError>(
        [&] {
          ExpertLayer layer(ExpertLayerOptions{
              .hidden_size = 4,
              .num_experts = 2,
              .make_expert = [](std::int64_t) {
                return torch::nn::AnyModule(std::make_shared<Scalar>());
              }});
          static_cast<void>(accelerator.prepare(layer));
        },
        "must have a dimension to be divided among ranks");
  });
}

TEST(ExpertTraining, SaysThatThereIsNothingToDivide) {
  run_on_ranks(2, [](WorldOptions world) {
    std::vector<std::string> lines;
    world.logger = Logger(
        [&](const LogRecord& record) { lines.emplace_back(record.message); },
        LogLevel::warning);
    const Accelerator accelerator({.parallel = {.expert = 2}, .world = world});
    static_cast<void>(accelerator.prepare(torch::nn::Linear(2, 2)));
    if (!accelerator.is_main_process()) return;
    EXPECT_THAT(
        lines,
        ::testing::Contains(::testing::HasSubstr(
            "expert is 2, but a model has no ExpertLayer")));
  });
}

}  // namespace expert_training_test
}  // namespace accelerate
