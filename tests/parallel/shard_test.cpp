// How a sharded model behaves, apart from ending with the right weights.
#include <map>

#include <accelerate/accelerate.h>

#include "support/expect_error.h"
#include "support/has_memory.h"
#include "support/run_on_ranks.h"
#include "support/temporary_directory.h"

namespace accelerate {
namespace shard_test {

using testing::expect_error;
using testing::has_memory;
using testing::run_on_ranks;
using testing::TemporaryDirectory;
using torch::Tensor;
namespace nn = torch::nn;

constexpr int kLayers = 5;

// Nothing is random, since ranks are threads that share LibTorch's generator.
void set_weights(const nn::Module& module, double scale) {
  const torch::NoGradGuard no_grad;
  double number = 0;
  for (Tensor& parameter : module.parameters()) {
    parameter.copy_(
        (torch::sin(torch::arange(parameter.numel()) + 37 * number++) * scale)
            .view(parameter.sizes()));
  }
}

struct NetImpl : nn::Module {
  explicit NetImpl(double scale = 1) {
    for (int i = 0; i < kLayers; ++i) layers->push_back(nn::Linear(8, 8));
    register_module("layers", layers);
    set_weights(*this, 0.3 * scale);
  }
  Tensor forward(const Tensor& x) {
    Tensor h = x;
    for (std::size_t i = 0; i < layers->size(); ++i) {
      h = torch::tanh(layers[i]->as<nn::Linear>()->forward(h));
      most_whole = std::max(most_whole, num_whole());
      if (fails_at == static_cast<int>(i))
        throw std::runtime_error("as the test wanted");
    }
    return h;
  }
  int num_whole() const {
    int count = 0;
    for (const auto& layer : *layers)
      count += has_memory(layer->as<nn::Linear>()->weight) ? 1 : 0;
    return count;
  }
  nn::ModuleList layers;
  int most_whole = 0;
  int fails_at = -1;
};
TORCH_MODULE(Net);

using Weights = std::map<std::string, Tensor>;

Weights weights_of(const nn::Module& module) {
  Weights weights;
  for (const auto& item : module.named_parameters())
    weights[item.key()] = item.value().detach().clone();
  return weights;
}

void expect_near(const Weights& found, const Weights& expected, double bound) {
  ASSERT_EQ(found.size(), expected.size());
  for (const auto& [name, tensor] : expected) {
    EXPECT_TRUE(torch::allclose(found.at(name), tensor, bound, bound))
        << name << " differs by "
        << (found.at(name) - tensor).abs().max().item<double>();
  }
}

torch::optim::SGDOptions sgd() {
  return torch::optim::SGDOptions(0.1).momentum(0.9);
}

ParallelOptions sharded() {
  return {.fully_sharded = FullyShardedDataParallelOptions()};
}

Tensor rows(const Accelerator& accelerator, int step) {
  torch::Tensor all = torch::sin(torch::arange(12 * 8 * 8).view({-1, 12, 8}));
  const int size = 12 / accelerator.num_processes();
  return all[step].narrow(0, accelerator.process_index() * size, size);
}

template <class Optimizer>
void train_step(
    const Accelerator& accelerator,
    const Model<NetImpl>& model,
    const Optimizer& optimizer,
    int step) {
  optimizer.zero_grad();
  accelerator.backward(model(rows(accelerator, step)).pow(2).mean());
  optimizer.step();
}

TEST(Shard, HasAtMostTwoUnitsUnsharded) {
  run_on_ranks(2, [](const WorldOptions& world) {
    Accelerator accelerator({.parallel = sharded(), .world = world});
    Net net;
    torch::optim::SGD inner(net->parameters(), sgd());
    auto [model, optimizer] = accelerator.prepare(net, inner);
    EXPECT_EQ(net->num_whole(), 0);
    for (int step = 0; step < 3; ++step) {
      net->most_whole = 0;
      train_step(accelerator, model, optimizer, step);
      EXPECT_LE(net->most_whole, 2) << "step " << step;
      EXPECT_EQ(net->num_whole(), 0);
    }
  });
}

TEST(Shard, GivesTheOptimizerThisRanksRowsOnly) {
  run_on_ranks(3, [](const WorldOptions& world) {
    Accelerator accelerator({.parallel = sharded(), .world = world});
    Net net;
    torch::optim::Adam inner(net->parameters());
    auto [model, optimizer] = accelerator.prepare(net, inner);
    train_step(accelerator, model, optimizer, 0);
    const std::int64_t own_rows[] = {2, 3, 3};
    for (const Tensor& parameter : inner.param_groups()[0].params()) {
      const std::int64_t expected = own_rows[accelerator.process_index()];
      EXPECT_EQ(parameter.size(0), expected);
      const auto& state = static_cast<const torch::optim::AdamParamState&>(
          *inner.state().at(parameter.unsafeGetTensorImpl()));
      EXPECT_EQ(state.exp_avg().sizes(), parameter.sizes());
    }
  });
}

TEST(Shard, TrainsBatchNormAsReplicasDo) {
  const auto train = [](const ParallelOptions& parallel, Precision precision) {
    Weights end;
    run_on_ranks(2, [&](const WorldOptions& world) {
      Accelerator accelerator(
          {.mixed_precision = precision, .parallel = parallel, .world = world});
      nn::Sequential net(
          nn::Conv2d(3, 8, 3),
          nn::BatchNorm2d(8),
          nn::ReLU(),
          nn::Conv2d(8, 4, 3));
      const torch::NoGradGuard outer;
      std::int64_t number = 0;
      for (Tensor& parameter : net->parameters())
        parameter.copy_(torch::sin(torch::arange(parameter.numel()) + number++)
                            .view(parameter.sizes()));
      torch::optim::SGD inner(net->parameters(), sgd());
      auto [model, optimizer] = accelerator.prepare(net, inner);
      for (int step = 0; step < 3; ++step) {
        const torch::AutoGradMode grad(true);
        optimizer.zero_grad();
        const Tensor images = torch::cos(
            torch::arange(2 * 3 * 64).view({2, 3, 8, 8}) +
            accelerator.process_index() + step);
        accelerator.backward(model(images.to(torch::kFloat)).pow(2).mean());
        optimizer.step();
      }
      const auto full = model.full_parameters();
      Weights mine = weights_of(*net);
      for (const auto& item : net->named_buffers())
        mine[item.key()] = item.value().clone();
      if (accelerator.is_main_process()) end = std::move(mine);
    });
    for (auto& [name, tensor] : end) tensor = tensor.to(torch::kDouble);
    return end;
  };
  expect_near(train(sharded(), Precision::no), train({}, Precision::no), 1e-5);
  expect_near(
      train(sharded(), Precision::bf16), train({}, Precision::no), 5e-2);
}

TEST(Shard, ComputesInTheProgramsPrecision) {
  for (const Precision precision : {Precision::bf16, Precision::fp16}) {
    Weights reference, found;
    for (Weights* const end : {&reference, &found}) {
      run_on_ranks(2, [&](const WorldOptions& world) {
        Accelerator accelerator(
            {.mixed_precision = end == &found ? precision : Precision::no,
             .parallel = end == &found ? sharded() : ParallelOptions(),
             .world = world});
        Net net;
        torch::optim::SGD inner(net->parameters(), sgd());
        auto [model, optimizer] = accelerator.prepare(net, inner);
        for (int step = 0; step < 4; ++step)
          train_step(accelerator, model, optimizer, step);
        if (end == &found) {
          EXPECT_EQ(
              inner.param_groups()[0].params()[0].scalar_type(), at::kFloat);
          EXPECT_EQ(
              net->parameters()[0].scalar_type(),
              precision == Precision::bf16 ? at::kBFloat16 : at::kHalf);
        }
        const auto full = model.full_parameters();
        if (accelerator.is_main_process()) *end = weights_of(*net);
      });
    }
    for (const auto& [name, tensor] : found)
      EXPECT_EQ(tensor.scalar_type(), at::kFloat);
    expect_near(found, reference, precision == Precision::bf16 ? 2e-2 : 5e-3);
  }
}

TEST(Shard, EvaluatesBetweenSteps) {
  run_on_ranks(2, [](const WorldOptions& world) {
    Accelerator accelerator({.parallel = sharded(), .world = world});
    Net net;
    torch::optim::SGD inner(net->parameters(), sgd());
    auto [model, optimizer] = accelerator.prepare(net, inner);
    for (int step = 0; step < 3; ++step) {
      train_step(accelerator, model, optimizer, step);
      const torch::NoGradGuard no_grad;
      Net same;
      {
        const auto full = model.full_parameters();
        auto from = net->named_parameters();
        for (auto& item : same->named_parameters())
          item.value().copy_(from[item.key()]);
      }
      // Repeated forwards, as in generation.
      for (int i = 0; i < 3; ++i) {
        const Tensor x = rows(accelerator, i);
        EXPECT_TRUE(torch::equal(model(x), same(x)));
        EXPECT_EQ(net->num_whole(), 0);
      }
    }
  });
}

TEST(Shard, LeavesNothingUnshardedAfterAnException) {
  run_on_ranks(2, [](const WorldOptions& world) {
    Accelerator accelerator({.parallel = sharded(), .world = world});
    Net net;
    torch::optim::SGD inner(net->parameters(), sgd());
    auto [model, optimizer] = accelerator.prepare(net, inner);
    train_step(accelerator, model, optimizer, 0);
    for (const int fails_at : {0, 2, kLayers - 1}) {
      net->fails_at = fails_at;
      EXPECT_THROW(model(rows(accelerator, 1)), std::runtime_error);
      EXPECT_EQ(net->num_whole(), 0);
    }
    net->fails_at = -1;
    for (int step = 1; step < 4; ++step)
      train_step(accelerator, model, optimizer, step);
    const auto full = model.full_parameters();
    const Weights mine = weights_of(*net);

    Accelerator plain({.world = {.rank = 0, .size = 1}});
    Net one;
    torch::optim::SGD alone(one->parameters(), sgd());
    auto [model_1, optimizer_1] = plain.prepare(one, alone);
    for (int step = 0; step < 4; ++step)
      train_step(plain, model_1, optimizer_1, step);
    if (accelerator.is_main_process())
      expect_near(mine, weights_of(*one), 1e-5);
  });
}

TEST(Shard, KeepsGradientsOfEarlierMicroStepsThroughAFailedForward) {
  run_on_ranks(2, [](const WorldOptions& world) {
    Accelerator accelerator(
        {.gradient_accumulation_steps = 2,
         .parallel = sharded(),
         .world = world});
    Net net;
    torch::optim::SGD inner(net->parameters(), sgd());
    auto [model, optimizer] = accelerator.prepare(net, inner);
    const auto scope = accelerator.accumulate(model);
    accelerator.backward(model(rows(accelerator, 0)).pow(2).mean());
    const Tensor gradient = net->parameters()[0].grad().clone();
    net->fails_at = 2;
    EXPECT_THROW(model(rows(accelerator, 1)), std::runtime_error);
    EXPECT_TRUE(torch::equal(net->parameters()[0].grad(), gradient));
  });
}

TEST(Shard, NamesAParameterThatIsReadElsewhere) {
  run_on_ranks(2, [](const WorldOptions& world) {
    Accelerator accelerator({.parallel = sharded(), .world = world});
    Net net;
    auto model = accelerator.prepare(net);
    expect_error<ConfigError>(
        [&] { net->parameters()[0].sum(); }, "layers.0.weight");
    expect_error<ConfigError>(
        [&] { net->forward(torch::ones({1, 8})); }, "full_parameters");
    EXPECT_EQ(net->parameters()[0].sizes(), (std::vector<int64_t>{8, 8}));
  });
}

TEST(Shard, KeepsChangesMadeToFullParameters) {
  run_on_ranks(3, [](const WorldOptions& world) {
    Accelerator accelerator({.parallel = sharded(), .world = world});
    Net net;
    auto model = accelerator.prepare(net);
    const torch::NoGradGuard no_grad;
    {
      const auto full = model.full_parameters();
      EXPECT_EQ(net->num_whole(), kLayers);
      for (Tensor& parameter : net->parameters()) parameter.fill_(0.25);
    }
    EXPECT_EQ(net->num_whole(), 0);
    const Tensor x = torch::ones({1, 8});
    Tensor expected = x;
    for (int i = 0; i < kLayers; ++i)
      expected =
          torch::tanh((expected * 0.25).sum(-1, true) + 0.25).expand({1, 8});
    EXPECT_TRUE(torch::allclose(model(x), expected));
  });
}

TEST(Shard, DoesNotRoundShardsThatAreOnlyRead) {
  run_on_ranks(2, [](const WorldOptions& world) {
    Accelerator accelerator(
        {.mixed_precision = Precision::bf16,
         .parallel = sharded(),
         .world = world});
    Net net;
    torch::optim::SGD inner(net->parameters(), sgd());
    auto [model, optimizer] = accelerator.prepare(net, inner);
    const Tensor shard = inner.param_groups()[0].params()[0];
    const Tensor before = shard.detach().clone();
    ASSERT_FALSE(
        torch::equal(before, before.to(torch::kBFloat16).to(torch::kFloat)));
    { const auto full = model.full_parameters(); }
    EXPECT_TRUE(torch::equal(shard, before));
    {
      const auto full = model.full_parameters();
      const torch::NoGradGuard no_grad;
      net->parameters()[0].fill_(0.5);
    }
    EXPECT_TRUE(torch::all(shard == 0.5).item<bool>());
    EXPECT_FALSE(
        torch::all(inner.param_groups()[0].params()[2] == 0.5).item<bool>());
  });
}

TEST(Shard, CountsScopesAndRefusesStepsInThem) {
  run_on_ranks(2, [](const WorldOptions& world) {
    Accelerator accelerator({.parallel = sharded(), .world = world});
    Net net, other;
    torch::optim::SGD inner(net->parameters(), sgd());
    auto [model, rest, optimizer] = accelerator.prepare(net, other, inner);
    const Tensor loss = model(rows(accelerator, 0)).pow(2).mean();
    {
      const auto first = model.full_parameters();
      { const auto second = model.full_parameters(); }
      EXPECT_EQ(net->num_whole(), kLayers);
      net->fails_at = 1;
      EXPECT_THROW(model(rows(accelerator, 1)), std::runtime_error);
      net->fails_at = -1;
      expect_error<ConfigError>(
          [&] { accelerator.backward(loss); }, "full_parameters() lives");
    }
    EXPECT_EQ(net->num_whole(), 0);
    auto outliving = rest.full_parameters();
    accelerator.free_memory();
  });
}

TEST(Shard, DoesNotWriteToMemoryThatIsReferencedElsewhere) {
  run_on_ranks(2, [](const WorldOptions& world) {
    Accelerator accelerator({.parallel = sharded(), .world = world});
    Net net;
    const Tensor mine = net->parameters()[0].detach();
    const Tensor values = mine.clone();
    torch::optim::SGD inner(net->parameters(), sgd());
    auto [model, optimizer] = accelerator.prepare(net, inner);
    for (int step = 0; step < 3; ++step)
      train_step(accelerator, model, optimizer, step);
    EXPECT_TRUE(torch::equal(mine, values));
  });
}

TEST(Shard, TrainsSeveralModels) {
  run_on_ranks(2, [](const WorldOptions& world) {
    Accelerator accelerator({.parallel = sharded(), .world = world});
    Net student, teacher(0.5);
    for (Tensor& parameter : teacher->parameters())
      parameter.set_requires_grad(false);
    nn::Linear critic(8, 1);
    torch::optim::SGD inner(student->parameters(), sgd());
    torch::optim::SGD critics(critic->parameters(), sgd());
    auto [model, frozen, judge, optimizer, critic_optimizer] =
        accelerator.prepare(student, teacher, critic, inner, critics);
    for (int step = 0; step < 3; ++step) {
      const Tensor x = rows(accelerator, step);
      Tensor target;
      {
        const torch::NoGradGuard no_grad;
        target = frozen(x);
      }
      critic_optimizer.zero_grad();
      accelerator.backward(
          judge(model(x).detach()).mean() - judge(target).mean());
      critic_optimizer.step();
      optimizer.zero_grad();
      const Tensor guess = model(x);
      accelerator.backward(
          (guess - target).pow(2).mean() - judge(guess).mean());
      optimizer.step();
    }
    const auto full = model.full_parameters();
    for (const Tensor& parameter : student->parameters())
      EXPECT_TRUE(torch::isfinite(parameter).all().item<bool>());
  });
}

TEST(Shard, GoesOnFromACheckpointOnAnyNumberOfRanks) {
  Weights expected;
  const auto run = [&](int ranks,
                       const ParallelOptions& parallel,
                       int first,
                       int last,
                       const std::string& load,
                       const std::string& save) {
    run_on_ranks(ranks, [&](const WorldOptions& world) {
      Accelerator accelerator({.parallel = parallel, .world = world});
      Net net;
      torch::optim::AdamW inner(
          net->parameters(), torch::optim::AdamWOptions(1e-2).eps(1e-4));
      auto [model, optimizer] = accelerator.prepare(net, inner);
      if (!load.empty()) accelerator.load_state(load);
      for (int step = first; step < last; ++step)
        train_step(accelerator, model, optimizer, step);
      if (!save.empty()) {
        accelerator.save_state(save);
        return;
      }
      const auto full = model.full_parameters();
      if (accelerator.is_main_process()) expected = weights_of(*net);
    });
    return expected;
  };
  const Weights straight = run(1, {}, 0, 6, "", "");
  const TemporaryDirectory directory;
  for (const int savers : {1, 2, 4}) {
    const std::string path =
        (directory / ("by_" + std::to_string(savers))).string();
    run(savers, savers == 1 ? ParallelOptions() : sharded(), 0, 3, "", path);
    for (const int loaders : {1, 2, 3}) {
      expect_near(
          run(loaders,
              loaders == 1 ? ParallelOptions() : sharded(),
              3,
              6,
              path,
              ""),
          straight,
          1e-5);
    }
    expect_near(
        run(2,
            {.deepspeed =
                 DeepSpeedOptions{.gradient_clipping = 0, .zero_stage = 1}},
            3,
            6,
            path,
            ""),
        straight,
        1e-5);
  }
}

TEST(Shard, SavesAFullModel) {
  const TemporaryDirectory directory;
  run_on_ranks(2, [&](const WorldOptions& world) {
    Accelerator accelerator({.parallel = sharded(), .world = world});
    Net net;
    auto model = accelerator.prepare(net);
    accelerator.save_model(model, (directory / "model").string());
    Net other;
    load_checkpoint_in_model(*other, directory / "model");
    const auto full = model.full_parameters();
    expect_near(weights_of(*other), weights_of(*net), 0);
  });
}

// Its weights are large enough to be sent one by one.
struct ExpertsImpl : nn::Module {
  explicit ExpertsImpl(int num_blocks = 4) {
    for (int i = 0; i < num_blocks; ++i) {
      const auto block = std::make_shared<nn::Module>();
      for (const char* const name : {"a", "b", "c"})
        block->register_parameter(name, torch::zeros({96, 96}));
      blocks->push_back(block);
    }
    register_module("blocks", blocks);
    set_weights(*this, 0.1);
  }
  // `uses` says which weights each block uses, and in which order.
  Tensor forward(Tensor h, const std::vector<std::string>& uses) {
    for (std::size_t i = 0; i < blocks->size(); ++i) {
      for (const char name : uses[i]) {
        const Tensor weight =
            blocks[i]->named_parameters()[std::string(1, name)];
        h = torch::tanh(h.matmul(weight)) + h;
      }
    }
    return h;
  }
  nn::ModuleList blocks;
};
TORCH_MODULE(Experts);

TEST(Shard, TakesGradientsOfDifferentParametersOnDifferentRanks) {
  const std::vector<std::vector<std::string>> usual(
      2, {"abc", "abc", "ab", "c"});
  const std::vector<std::vector<std::string>> mixed{
      {"abc", "ca", "ab", "a"}, {"ba", "abc", "cb", "b"}};
  const auto input = [](int rank) {
    return torch::sin(torch::arange(2 * 96) + rank).view({2, 96});
  };
  for (const int stage : {1, 2, 3}) {
    SCOPED_TRACE(stage);
    run_on_ranks(2, [&](const WorldOptions& world) {
      WorldOptions options = world;
      options.timeout = std::chrono::seconds(30);  // if ranks deadlock
      const Accelerator accelerator(
          {.parallel =
               {.deepspeed =
                    DeepSpeedOptions{
                        .gradient_clipping = 0, .zero_stage = stage}},
           .world = options});
      Experts net, reference;
      torch::optim::SGD inner(net->parameters(), torch::optim::SGDOptions(0.1));
      const auto [model, optimizer] = accelerator.prepare(net, inner);
      torch::optim::SGD alone(
          reference->parameters(), torch::optim::SGDOptions(0.1));
      for (int step = 0; step < 6; ++step) {
        // Mixed in the first step, usual after it, and back again.
        const auto& uses = step % 3 == 0 ? mixed : usual;
        const int rank = accelerator.process_index();
        optimizer.zero_grad();
        accelerator.backward(
            model(input(rank), uses[static_cast<std::size_t>(rank)])
                .pow(2)
                .mean());
        optimizer.step();
        alone.zero_grad();
        for (int r = 0; r < 2; ++r) {
          const Tensor loss =
              reference->forward(input(r), uses[static_cast<std::size_t>(r)])
                  .pow(2)
                  .mean();
          (loss / 2).backward();
        }
        alone.step();
      }
      const auto full = model.full_parameters();
      for (const auto& item : net->named_parameters()) {
        EXPECT_TRUE(torch::allclose(
            item.value(),
            reference->named_parameters()[item.key()],
            1e-5,
            1e-6))
            << item.key();
      }
    });
  }
}

// The rank that uses everything waits for the other's gradients in the middle of
// its backward, while the other needs it to gather the units that follow.
TEST(Shard, DoesNotWaitForARankThatSkipsAParameter) {
  run_on_ranks(2, [](const WorldOptions& world) {
    const Accelerator accelerator({.parallel = sharded(), .world = world});
    Experts net(8);
    torch::optim::SGD inner(net->parameters(), torch::optim::SGDOptions(0.1));
    const auto [model, optimizer] = accelerator.prepare(net, inner);
    std::vector<std::string> uses(8, "abc");
    if (accelerator.process_index() == 1) uses.back() = "ab";
    for (int step = 0; step < 2; ++step) {
      optimizer.zero_grad();
      accelerator.backward(model(torch::ones({2, 96}), uses).pow(2).mean());
      optimizer.step();
    }
  });
}

TEST(Shard, AveragesGradientsOfAWindowWhoseLastBackwardDoesNotReachTheModel) {
  const auto options = [](int stage, bool is_hybrid) {
    ParallelOptions parallel{
        .deepspeed =
            DeepSpeedOptions{.gradient_clipping = 0, .zero_stage = stage}};
    if (is_hybrid) parallel.replicate = 2;
    return parallel;
  };
  Net whole_first(1), whole_second(0.5);
  torch::optim::SGD alone(whole_first->parameters(), sgd());
  for (const Tensor& parameter : whole_second->parameters())
    alone.param_groups()[0].params().push_back(parameter);
  for (int step = 0; step < 3; ++step) {
    alone.zero_grad();
    const Tensor x =
        torch::sin(torch::arange(12 * 8 * 8).view({-1, 12, 8}))[step];
    (whole_first->forward(x).pow(2).mean() / 2).backward();
    (whole_second->forward(x).pow(2).mean() / 2).backward();
    alone.step();
  }
  for (const bool is_hybrid : {false, true}) {
    for (const int stage : {1, 2, 3}) {
      SCOPED_TRACE(stage);
      run_on_ranks(is_hybrid ? 4 : 2, [&](const WorldOptions& world) {
        const Accelerator accelerator(
            {.gradient_accumulation_steps = 2,
             .parallel = options(stage, is_hybrid),
             .world = world});
        Net first(1), second(0.5);
        torch::optim::SGD inner(first->parameters(), sgd());
        for (const Tensor& parameter : second->parameters())
          inner.param_groups()[0].params().push_back(parameter);
        const auto [a, b, optimizer] =
            accelerator.prepare(first, second, inner);
        for (int step = 0; step < 3; ++step) {
          for (const auto& model : {a, b}) {
            const auto micro_step = accelerator.accumulate(a, b);
            accelerator.backward(model(rows(accelerator, step)).pow(2).mean());
            optimizer.step();
            optimizer.zero_grad();
          }
        }
        {
          const auto full = a.full_parameters();
          expect_near(weights_of(*first), weights_of(*whole_first), 1e-5);
        }
        const auto full = b.full_parameters();
        expect_near(weights_of(*second), weights_of(*whole_second), 1e-5);
      });
    }
  }
}

TEST(Shard, TakesParametersOfOddShapes) {
  struct Odd : nn::Module {
    Odd() {
      scalar = register_parameter("scalar", torch::full({}, 2.0));
      empty = register_parameter("empty", torch::zeros({0, 4}));
      few = register_parameter("few", torch::ones({1, 3}));
      turned =
          register_parameter("turned", torch::arange(24.).view({4, 6}).t());
      doubles =
          register_parameter("doubles", torch::arange(5.).to(torch::kDouble));
    }
    Tensor forward(const Tensor& x) {
      return (x * scalar).sum() + few.sum() +
          turned.mm(torch::ones({4, 1})).sum() + empty.sum() +
          doubles.sum().to(torch::kFloat);
    }
    Tensor scalar, empty, few, turned, doubles;
  };
  run_on_ranks(3, [](const WorldOptions& world) {
    Accelerator accelerator({.parallel = sharded(), .world = world});
    auto odd = std::make_shared<Odd>();
    const Weights before = weights_of(*odd);
    torch::optim::SGD inner(odd->parameters(), torch::optim::SGDOptions(0.5));
    auto [model, optimizer] = accelerator.prepare(odd, inner);
    accelerator.backward(model(torch::full({2}, accelerator.process_index())));
    optimizer.step();
    const auto full = model.full_parameters();
    const Weights after = weights_of(*odd);
    EXPECT_DOUBLE_EQ(after.at("scalar").item<double>(), 2.0 - 0.5 * 2);
    EXPECT_TRUE(torch::allclose(after.at("few"), before.at("few") - 0.5));
    EXPECT_TRUE(torch::allclose(after.at("turned"), before.at("turned") - 0.5));
    EXPECT_TRUE(
        torch::allclose(after.at("doubles"), before.at("doubles") - 0.5));
  });
}

TEST(Shard, LeavesIgnoredModulesUnshardedAndAveragesTheirGradients) {
  run_on_ranks(2, [](const WorldOptions& world) {
    FullyShardedDataParallelOptions options;
    options.ignored_modules = "layers\\.[01]";
    Accelerator accelerator(
        {.parallel = {.fully_sharded = options}, .world = world});
    Net net;
    torch::optim::SGD inner(net->parameters(), sgd());
    auto [model, optimizer] = accelerator.prepare(net, inner);
    EXPECT_EQ(net->num_whole(), 2);
    for (int step = 0; step < 3; ++step)
      train_step(accelerator, model, optimizer, step);
    EXPECT_EQ(net->num_whole(), 2);
    const Tensor weight = net->layers[0]->as<nn::Linear>()->weight.detach();
    const auto of_ranks = accelerator.world().group().all_gather(weight);
    EXPECT_TRUE(torch::equal(of_ranks[0], of_ranks[1]));
  });
}

TEST(Shard, RefusesWhatWouldGoWrong) {
  run_on_ranks(2, [](const WorldOptions& world) {
    Accelerator accelerator({.parallel = sharded(), .world = world});
    Net net;
    torch::optim::SGD stepped(net->parameters(), sgd());
    net(torch::ones({1, 8})).sum().backward();
    stepped.step();
    expect_error<ConfigError>(
        [&] { accelerator.prepare(net, stepped); }, "stepped on");
    Net moved;
    auto model = accelerator.prepare(moved);
    expect_error<ConfigError>(
        [&] { accelerator.join_uneven_inputs([] {}); }, "even_batches");
    expect_error<ConfigError>(
        [&] { moved->to(torch::kDouble); }, "layers.0.weight");
    Net frozen;
    for (Tensor& parameter : frozen->parameters())
      parameter.set_requires_grad(false);
    auto sleeping = accelerator.prepare(frozen);
    frozen->parameters()[2].set_requires_grad(true);
    expect_error<ConfigError>(
        [&] { sleeping(torch::ones({1, 8})); }, "layers.1.weight");
    moved->parameters()[0].set_data(torch::zeros({8, 8}));
    expect_error<ConfigError>(
        [&] { model(torch::ones({1, 8})); }, "layers.0.weight");
  });
}

}  // namespace shard_test
}  // namespace accelerate
