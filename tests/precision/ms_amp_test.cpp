// MS-AMP's recipe: gradients of weights and Adam's moments in 8 and 16 bits,
// compared with a program that rounds them by hand.
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <torch/torch.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <accelerate/accelerate.h>
#include <accelerate/fp8.h>
#include <accelerate/local_sgd.h>

#include "support/expect_error.h"
#include "support/run_counted.h"
#include "support/run_on_ranks.h"
#include "support/temporary_directory.h"

namespace accelerate {
namespace ms_amp_test {

namespace nn = torch::nn;
using at::Tensor;
using testing::expect_error;
using testing::run_on_ranks;
using testing::TemporaryDirectory;
using Tensors = std::vector<Tensor>;

constexpr std::int64_t kPart = 16;
constexpr double kRate = 0.02;

Tensor normal(at::IntArrayRef sizes, std::uint64_t seed) {
  return torch::randn(sizes, at::detail::createCPUGenerator(seed));
}

// The last layer's sizes keep it out of float8.
nn::Sequential make_net() {
  nn::Sequential net(
      nn::Linear(16, 32),
      nn::GELU(),
      nn::Linear(32, 16),
      nn::GELU(),
      nn::Linear(16, 5));
  const torch::NoGradGuard no_grad;
  std::uint64_t seed = 1;
  for (Tensor parameter : net->parameters())
    parameter.copy_(normal(parameter.sizes(), seed++) * 0.2);
  return net;
}

bool is_float8_weight(const Tensor& parameter) {
  return parameter.dim() == 2 && parameter.size(0) % 16 == 0;
}

Tensor input_of(int step, int part) {
  return normal(
      {kPart, 16}, static_cast<std::uint64_t>(100 + 10 * step + part));
}

Tensor loss_of(const Tensor& found) {
  return torch::square(found - 0.3).mean();
}

Tensors copies_of(const Tensors& tensors) {
  Tensors copies;
  for (const Tensor& tensor : tensors)
    copies.push_back(tensor.detach().clone());
  return copies;
}

void expect_equal(
    const Tensors& found,
    const Tensors& expected,
    const std::string& label = {}) {
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    EXPECT_TRUE(at::equal(found[i], expected[i]))
        << label << ": parameter " << i << " differs by "
        << (found[i] - expected[i]).abs().max().item<double>();
  }
}

/// A training run with the recipe.
struct Training {
  std::string level = "O2";
  /// Micro-steps per rank, each with its own part of the batch.
  int window = 1;
  int first_step = 0;
  int last_step = 5;
  std::string load = {};
  std::string save = {};
  bool all_ranks_read_the_same = false;
  bool has_sgd = false;
};

AcceleratorOptions options_of(
    const std::string& level,
    const WorldOptions& world) {
  return {
      .mixed_precision = Precision::fp8,
      .fp8_recipe = MSAMPRecipeKwargs{level},
      .autocast = {.enabled = false},
      // The references step with LibTorch's own operators.
      .fused_optimizers = false,
      .world = world};
}

std::unique_ptr<torch::optim::Optimizer> optimizer_for(
    nn::Sequential& net,
    bool has_sgd) {
  if (has_sgd)
    return std::make_unique<torch::optim::SGD>(net->parameters(), kRate);
  return std::make_unique<torch::optim::AdamW>(
      net->parameters(), torch::optim::AdamWOptions(kRate));
}

Tensors train(const Training& run, const WorldOptions& world) {
  AcceleratorOptions options = options_of(run.level, world);
  options.gradient_accumulation_steps = run.window;
  const Accelerator accelerator(options);
  nn::Sequential net = make_net();
  const auto inner = optimizer_for(net, run.has_sgd);
  auto [model, optimizer] = accelerator.prepare(net, *inner);
  if (!run.load.empty()) accelerator.load_state(run.load);
  const int rank = run.all_ranks_read_the_same ? 0 : *world.rank;
  for (int step = run.first_step; step < run.last_step; ++step) {
    for (int i = 0; i < run.window; ++i) {
      const auto micro_step = accelerator.accumulate(model);
      optimizer.zero_grad();
      const Tensor x = input_of(step, rank * run.window + i);
      accelerator.backward(loss_of(model(x)));
      optimizer.step();
    }
  }
  if (!run.save.empty()) accelerator.save_state(run.save);
  return copies_of(net->parameters());
}

// Rounds to another dtype with a power of two as scale, by LibTorch's casts.
Tensor rounded(
    const Tensor& x,
    at::ScalarType dtype,
    std::optional<double> given_scale = std::nullopt) {
  const double largest = dtype == at::kHalf ? 65504 : 448;
  const double amax = x.abs().max().item<double>();
  const double scale = given_scale.value_or(
      amax == 0 ? 1 : std::exp2(std::floor(std::log2(largest / amax))));
  return (x * scale).to(dtype).to(at::kFloat) / scale;
}

double scale_of(const Tensor& gradient) {
  return std::exp2(
      std::floor(std::log2(448 / gradient.abs().max().item<double>())));
}

// The gradient with which ranks that have these gradients step.
Tensor average_by_hand(const Tensors& of_ranks, bool is_kept_in_float8) {
  const auto num_ranks = static_cast<double>(of_ranks.size());
  double scale = std::numeric_limits<double>::infinity();
  for (const Tensor& gradient : of_ranks)
    scale = std::min(scale, scale_of(gradient));
  Tensor sum;
  for (const Tensor& gradient : of_ranks) {
    const Tensor own = is_kept_in_float8
        ? rounded(
              rounded(gradient, at::kFloat8_e4m3fn), at::kFloat8_e4m3fn, scale)
        : gradient / num_ranks;
    sum = sum.defined() ? sum + own : own;
  }
  if (!is_kept_in_float8) return sum;
  return num_ranks == 1 ? sum
                        : rounded(sum / num_ranks, at::kFloat8_e4m3fn, scale);
}

void round_moments(torch::optim::Optimizer& optimizer) {
  for (auto& [key, state] : optimizer.state()) {
    auto& adam = static_cast<torch::optim::AdamWParamState&>(*state);
    adam.exp_avg(rounded(adam.exp_avg(), at::kFloat8_e4m3fn));
    adam.exp_avg_sq(rounded(adam.exp_avg_sq(), at::kHalf));
  }
}

// The same training in one process, with a recipe that has the same casts in
// layers.
Tensors train_by_hand(const Training& run, int num_ranks) {
  Tensors weights;
  run_on_ranks(1, [&](const WorldOptions& world) {
    AcceleratorOptions options = options_of(run.level, world);
    options.fp8_recipe = AORecipeKwargs{
        .config = Float8LinearConfig{.round_scales_to_power_of_2 = true},
        .module_filter_func = [](const std::string&, const nn::Module& layer) {
          return is_float8_weight(layer.as<nn::LinearImpl>()->weight);
        }};
    const Accelerator accelerator(options);
    nn::Sequential net = make_net();
    const Tensors parameters = net->parameters();
    const auto optimizer = optimizer_for(net, run.has_sgd);
    auto model = accelerator.prepare(net);
    for (int step = run.first_step; step < run.last_step; ++step) {
      std::vector<Tensors> by_parameter(parameters.size());
      for (int rank = 0; rank < num_ranks; ++rank) {
        Tensors kept(parameters.size());
        for (int i = 0; i < run.window; ++i) {
          net->zero_grad();
          const Tensor x = input_of(step, rank * run.window + i);
          accelerator.backward(loss_of(model(x)) / run.window);
          for (std::size_t p = 0; p < parameters.size(); ++p) {
            const Tensor gradient = parameters[p].grad().clone();
            kept[p] = kept[p].defined() ? kept[p] + gradient : gradient;
            if (is_float8_weight(parameters[p]) && i + 1 < run.window)
              kept[p] = rounded(kept[p], at::kFloat8_e4m3fn);
          }
        }
        for (std::size_t p = 0; p < parameters.size(); ++p)
          by_parameter[p].push_back(kept[p]);
      }
      for (std::size_t p = 0; p < parameters.size(); ++p) {
        parameters[p].mutable_grad() =
            average_by_hand(by_parameter[p], is_float8_weight(parameters[p]));
      }
      optimizer->step();
      if (run.level == "O2") round_moments(*optimizer);
      // LibTorch's SGD changes weights without increasing their versions.
      const torch::NoGradGuard no_grad;
      for (Tensor parameter : parameters) parameter.mul_(1);
    }
    weights = copies_of(parameters);
  });
  return weights;
}

TEST(MsAmp, IsTheProgramThatRoundsByHand) {
  for (const int num_ranks : {1, 2, 4}) {
    for (const Training& run :
         {Training{.level = "O1"},
          Training{.level = "O1", .has_sgd = true},
          Training{.level = "O2"},
          Training{.level = "O2", .window = 4}}) {
      const std::string label = run.level + (run.has_sgd ? " SGD" : "") +
          " on " + std::to_string(num_ranks) + " ranks, window " +
          std::to_string(run.window);
      const Tensors expected = train_by_hand(run, num_ranks);
      run_on_ranks(num_ranks, [&](const WorldOptions& world) {
        expect_equal(train(run, world), expected, label);
      });
    }
  }
}

TEST(MsAmp, IsTheSameOnRanksThatReadTheSame) {
  Tensors expected;
  run_on_ranks(1, [&](const WorldOptions& world) {
    expected = train({.all_ranks_read_the_same = true}, world);
  });
  for (const int num_ranks : {2, 4}) {
    run_on_ranks(num_ranks, [&](const WorldOptions& world) {
      expect_equal(train({.all_ranks_read_the_same = true}, world), expected);
    });
  }
}

TEST(MsAmp, GoesOnFromACheckpointExactly) {
  for (const int num_ranks : {1, 2}) {
    for (const std::string level : {"O1", "O2"}) {
      const TemporaryDirectory directory;
      const std::string path = directory.path() / "state";
      run_on_ranks(num_ranks, [&](const WorldOptions& world) {
        const Tensors expected = train({.level = level, .last_step = 8}, world);
        const Tensors first =
            train({.level = level, .last_step = 4, .save = path}, world);
        const Tensors found = train(
            {.level = level, .first_step = 4, .last_step = 8, .load = path},
            world);
        expect_equal(found, expected);
      });
    }
  }
}

// Checkpoints have full-precision moments, so a run can continue without the
// recipe.
TEST(MsAmp, SavesMomentsThatOtherRecipesLoad) {
  const TemporaryDirectory directory;
  const std::string path = directory.path() / "state";
  run_on_ranks(1, [&](const WorldOptions& world) {
    const Tensors trained = train({.last_step = 3, .save = path}, world);
    const Accelerator accelerator({.world = world});
    nn::Sequential net = make_net();
    torch::optim::AdamW adam(net->parameters(), kRate);
    auto [model, optimizer] = accelerator.prepare(net, adam);
    accelerator.load_state(path);
    expect_equal(net->parameters(), trained);
    for (const Tensor& parameter : net->parameters()) {
      const auto& state = static_cast<const torch::optim::AdamWParamState&>(
          *adam.state().at(parameter.unsafeGetTensorImpl()));
      EXPECT_EQ(state.step(), 3);
      ASSERT_EQ(state.exp_avg().scalar_type(), at::kFloat);
      ASSERT_EQ(state.exp_avg_sq().scalar_type(), at::kFloat);
      EXPECT_TRUE(at::equal(
          state.exp_avg(), rounded(state.exp_avg(), at::kFloat8_e4m3fn)));
      EXPECT_GT(state.exp_avg().abs().max().item<double>(), 0);
      EXPECT_TRUE(at::equal(
          state.exp_avg_sq(), rounded(state.exp_avg_sq(), at::kHalf)));
    }
  });
}

TEST(MsAmp, KeepsGradientsAndMomentsInFewBytes) {
  run_on_ranks(1, [](const WorldOptions& world) {
    const Accelerator accelerator(options_of("O2", world));
    nn::Sequential net = make_net();
    torch::optim::AdamW adam(
        net->parameters(), torch::optim::AdamWOptions(kRate).amsgrad(true));
    auto [model, optimizer] = accelerator.prepare(net, adam);
    for (int step = 0; step < 2; ++step) {
      accelerator.backward(loss_of(model(input_of(step, 0))));
      // Gradients of float8 weights are not in grad().
      for (const Tensor& parameter : net->parameters())
        EXPECT_EQ(parameter.grad().defined(), !is_float8_weight(parameter));
      optimizer.step();
      for (const Tensor& parameter : net->parameters()) {
        const auto& state = static_cast<const torch::optim::AdamWParamState&>(
            *adam.state().at(parameter.unsafeGetTensorImpl()));
        EXPECT_EQ(state.exp_avg().scalar_type(), at::kFloat8_e4m3fn);
        EXPECT_EQ(state.exp_avg_sq().scalar_type(), at::kHalf);
        EXPECT_EQ(state.max_exp_avg_sq().scalar_type(), at::kHalf);
        EXPECT_EQ(state.exp_avg().sizes(), parameter.sizes());
      }
      optimizer.zero_grad();
    }
    // An optimizer that outlives the Accelerator gets its state back.
    accelerator.free_memory();
    for (const auto& [key, state] : adam.state()) {
      EXPECT_EQ(
          static_cast<torch::optim::AdamWParamState&>(*state)
              .exp_avg()
              .scalar_type(),
          at::kFloat);
    }
    torch::square(net->forward(input_of(0, 0))).mean().backward();
    adam.step();
  });
}

TEST(MsAmp, SendsGradientsInAQuarterOfTheBytes) {
  const auto bytes_of_a_step = [](const FP8Recipe& recipe) {
    double bytes = 0;
    testing::run_counted(
        2, [&](const WorldOptions& world, detail::TrafficCounter& counter) {
          AcceleratorOptions options = options_of("O1", world);
          options.fp8_recipe = recipe;
          const Accelerator accelerator(options);
          nn::Linear net(nn::LinearOptions(256, 256).bias(false));
          torch::optim::SGD sgd(net->parameters(), kRate);
          auto [model, optimizer] = accelerator.prepare(net, sgd);
          counter.reset();
          accelerator.backward(
              model(normal({8, 256}, static_cast<std::uint64_t>(*world.rank)))
                  .square()
                  .mean());
          if (*world.rank == 0) bytes = counter.total().bytes;
        });
    return bytes;
  };
  const double in_fp32 = bytes_of_a_step(TERecipeKwargs());
  const double in_float8 = bytes_of_a_step(MSAMPRecipeKwargs{"O1"});
  // In addition to gradients, a few bytes for scales and sizes.
  EXPECT_GE(in_fp32, 4 * 256 * 256);
  EXPECT_GE(in_float8, 256 * 256);
  EXPECT_LE(in_float8, 256 * 256 + 64);
}

TEST(MsAmp, ClipsAndDropsWhatItKeeps) {
  run_on_ranks(2, [](const WorldOptions& world) {
    const Accelerator accelerator(options_of("O2", world));
    nn::Sequential net = make_net();
    torch::optim::AdamW adam(net->parameters(), kRate);
    auto [model, optimizer] = accelerator.prepare(net, adam);
    const auto backward = [&, &model = model] {
      accelerator.backward(loss_of(model(input_of(0, *world.rank))));
    };
    backward();
    const double norm =
        accelerator.clip_grad_norm_(net->parameters(), 1e9).item<double>();
    Tensor squares = torch::zeros({});
    for (const Tensor& parameter : net->parameters()) {
      ASSERT_TRUE(parameter.grad().defined());
      squares += parameter.grad().square().sum();
    }
    EXPECT_NEAR(norm, squares.sqrt().item<double>(), 1e-6);
    const Tensors once = copies_of({net->parameters()[0].grad()});
    for (const bool by_model : {false, true}) {
      optimizer.zero_grad();
      backward();
      // Drops the gradients that the recipe keeps.
      if (by_model) {
        model.zero_grad();
      } else {
        optimizer.zero_grad();
      }
      backward();
      accelerator.clip_grad_norm_(net->parameters(), 1e9);
      expect_equal({net->parameters()[0].grad()}, once);
    }
  });
}

struct TwoWaysImpl : nn::Module {
  Tensor forward(const Tensor& x, int way) {
    return (way == 0 ? first : second)->forward(x);
  }
  nn::Linear first = register_module("first", nn::Linear(16, 16));
  nn::Linear second = register_module("second", nn::Linear(16, 16));
  nn::Linear third = register_module("third", nn::Linear(16, 16));
};
TORCH_MODULE(TwoWays);

TEST(MsAmp, TakesZerosForWeightsThatARankDoesNotUse) {
  run_on_ranks(2, [](const WorldOptions& world) {
    AcceleratorOptions options = options_of("O1", world);
    options.parallel.replicate_options.find_unused_parameters = true;
    const Accelerator accelerator(options);
    TwoWays net;
    torch::optim::SGD sgd(net->parameters(), kRate);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    const Tensor x = at::ones({4, 16});
    accelerator.backward(model(x, *world.rank).sum());
    accelerator.clip_grad_norm_(net->parameters(), 1e9);
    const Tensor half_of_sums = at::full({16, 16}, 2.F);
    EXPECT_TRUE(at::equal(net->first->weight.grad(), half_of_sums));
    EXPECT_TRUE(at::equal(net->second->weight.grad(), half_of_sums));
    EXPECT_FALSE(net->third->weight.grad().defined());
  });
}

TEST(MsAmp, KeepsInfiniteGradientsVisible) {
  run_on_ranks(2, [](const WorldOptions& world) {
    const Accelerator accelerator(options_of("O1", world));
    nn::Linear net(16, 16);
    torch::optim::SGD sgd(net->parameters(), kRate);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    const double factor =
        *world.rank == 1 ? std::numeric_limits<double>::infinity() : 1;
    accelerator.backward(model(at::ones({4, 16})).sum() * factor);
    accelerator.clip_grad_norm_(net->parameters(), 1e9);
    EXPECT_TRUE(at::isnan(net->weight.grad()).all().item<bool>());
  });
}

TEST(MsAmp, HasMasterWeightsOfModelsInBf16) {
  run_on_ranks(2, [](const WorldOptions& world) {
    AcceleratorOptions options = options_of("O2", world);
    options.master_weights = true;
    const Accelerator accelerator(options);
    nn::Sequential net = make_net();
    net->to(at::kBFloat16);
    torch::optim::AdamW adam(net->parameters(), kRate);
    auto [model, optimizer] = accelerator.prepare(net, adam);
    double first = 0, last = 0;
    for (int step = 0; step < 20; ++step) {
      optimizer.zero_grad();
      const Tensor loss =
          loss_of(model(input_of(0, *world.rank).to(at::kBFloat16)));
      last = loss.item<double>();
      if (step == 0) first = last;
      accelerator.backward(loss);
      optimizer.step();
    }
    EXPECT_LT(last, first / 2);
  });
}

TEST(MsAmp, StepsWithClosures) {
  run_on_ranks(1, [](const WorldOptions& world) {
    const Tensors expected = train({.last_step = 1}, world);
    const Accelerator accelerator(options_of("O2", world));
    nn::Sequential net = make_net();
    torch::optim::AdamW adam(net->parameters(), kRate);
    auto [model, optimizer] = accelerator.prepare(net, adam);
    optimizer.step([&, &model = model] {
      const Tensor loss = loss_of(model(input_of(0, 0)));
      accelerator.backward(loss);
      return loss;
    });
    expect_equal(net->parameters(), expected);
  });
}

// Each of two ranks has the same sequence as the one process, so that sums are
// exact.
TEST(MsAmp, DividesSequences) {
  const auto trained_on = [](const WorldOptions& world, int context) {
    AcceleratorOptions options = options_of("O2", world);
    options.parallel.context = context;
    const Accelerator accelerator(options);
    nn::Sequential net = make_net();
    torch::optim::AdamW adam(net->parameters(), kRate);
    auto [model, optimizer] = accelerator.prepare(net, adam);
    for (int step = 0; step < 4; ++step) {
      const Tensors pieces(
          static_cast<std::size_t>(2 * context), input_of(step, 0));
      const Tensor x = at::cat(pieces);
      const auto sequence = accelerator.maybe_context_parallel({x}, {0});
      EXPECT_EQ(x.size(0), 2 * kPart);
      optimizer.zero_grad();
      accelerator.backward(loss_of(model(x)));
      optimizer.step();
    }
    return copies_of(net->parameters());
  };
  Tensors expected;
  run_on_ranks(
      1, [&](const WorldOptions& world) { expected = trained_on(world, 1); });
  run_on_ranks(2, [&](const WorldOptions& world) {
    expect_equal(trained_on(world, 2), expected);
  });
}

// Ranks step separately, and average weights.
TEST(MsAmp, AveragesWeightsInLocalSGD) {
  std::vector<Tensors> by_rank(2);
  run_on_ranks(2, [&](const WorldOptions& world) {
    const Accelerator accelerator(options_of("O1", world));
    nn::Sequential net = make_net();
    torch::optim::SGD sgd(net->parameters(), kRate);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    LocalSGD local(accelerator, model, {.local_sgd_steps = 2});
    for (int step = 0; step < 2; ++step) {
      optimizer.zero_grad();
      accelerator.backward(loss_of(model(input_of(step, *world.rank))));
      optimizer.step();
      local.step();
    }
    by_rank[static_cast<std::size_t>(*world.rank)] =
        copies_of(net->parameters());
  });
  expect_equal(by_rank[0], by_rank[1]);
}

// Weights after two steps of replica `replica`, in which two ranks share
// samples.
Tensors weights_of_replica(
    const ParallelOptions& parallel,
    int replica,
    bool steps_locally) {
  Tensors weights;
  run_on_ranks(steps_locally ? 4 : 2, [&](const WorldOptions& world) {
    AcceleratorOptions options = options_of("O1", world);
    options.parallel = parallel;
    const Accelerator accelerator(options);
    nn::Sequential net = make_net();
    torch::optim::SGD sgd(net->parameters(), kRate);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    const LocalSGD local(
        accelerator, model, {.local_sgd_steps = 9, .enabled = steps_locally});
    const int part = steps_locally ? *world.rank : 2 * replica + *world.rank;
    for (int step = 0; step < 2; ++step) {
      optimizer.zero_grad();
      accelerator.backward(loss_of(model(input_of(step, part))));
      optimizer.step();
    }
    if (part == 2 * replica + 1) weights = copies_of(net->parameters());
  });
  return weights;
}

// Ranks that share samples go on averaging gradients in float8.
TEST(MsAmp, AveragesGradientsOfDividedSequencesInLocalSGD) {
  for (const int replica : {0, 1}) {
    expect_equal(
        weights_of_replica({.replicate = 2, .context = 2}, replica, true),
        weights_of_replica({.context = 2}, replica, false));
  }
}

TEST(MsAmp, RefusesWhatItCannotCompose) {
  run_on_ranks(1, [](const WorldOptions& world) {
    const Accelerator accelerator(options_of("O2", world));
    nn::Linear net(16, 16);
    torch::optim::SGD sgd(net->parameters(), kRate);
    expect_error<ConfigError>(
        [&] { accelerator.prepare(net, sgd); },
        "level O2 keeps the moments of Adam and AdamW in 8 bits, but the "
        "optimizer is SGD");
  });
  run_on_ranks(1, [](const WorldOptions& world) {
    AcceleratorOptions options = options_of("O1", world);
    options.parallel.fully_sharded = FullyShardedDataParallelOptions{};
    expect_error<ConfigError>(
        [&] { const Accelerator accelerator(options); },
        "MS-AMP's recipe keeps a scale for each full gradient and moment, but "
        "shard divides a model over ranks");
  });
  run_on_ranks(2, [](const WorldOptions& world) {
    AcceleratorOptions options = options_of("O1", world);
    options.parallel.tensor = 2;
    expect_error<ConfigError>(
        [&] { const Accelerator accelerator(options); },
        "but tensor divides a model over ranks");
    const Accelerator accelerator(options_of("O1", world));
    nn::Linear net(16, 16);
    torch::optim::SGD sgd(net->parameters(), kRate);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    expect_error<ConfigError>(
        [&] { accelerator.join_uneven_inputs([] {}); },
        "trains by MS-AMP's recipe agree on scales of gradients");
    optim::Lomo lomo(net->parameters());
    auto updates = accelerator.prepare(lomo);
    expect_error<ConfigError>(
        [&, &model = model] {
          accelerator.lomo_backward(model(at::ones({4, 16})).sum(), 0.1);
        },
        "lomo_backward() keeps no gradients");
  });
}

}  // namespace ms_amp_test
}  // namespace accelerate
