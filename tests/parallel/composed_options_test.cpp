// Split layers and divided sequences with loss scaling, communication hooks,
// LocalSGD and LOMO: they train as one process does, or say why not.
#include <accelerate/accelerate.h>

#include <functional>
#include <limits>
#include <memory>

#include "axes_problem.h"
#include "support/expect_error.h"

namespace accelerate {
namespace composed_options_test {

using namespace axes_problem;
using testing::expect_error;

const Axes kAxes[] = {
    {.tensor = 2},
    {.context = 2},
    {.context = 2, .tensor = 2},
    {.replicate = 2, .tensor = 2},
    {.replicate = 2, .context = 2}};

TEST(ComposedOptions, ScaleLosses) {
  const Numbers numbers{
      .steps = 4,
      .window = 2,
      .precision = Precision::fp16,
      .tolerance = 1e-2,
      .adapt = [](AcceleratorOptions& options) {
        options.grad_scaler.init_scale = 128;
      }};
  const Outcome expected = outcome_on({}, numbers);
  for (const Axes& axes : kAxes) expect_like(expected, axes, numbers);
  expect_like(expected, {.shard = 2, .tensor = 2}, numbers);
}

// If a gradient overflows in only one rank's slice, no rank steps.
TEST(ComposedOptions, SkipAStepThatOverflowsOnOneRank) {
  for (const Axes& axes : kAxes) {
    SCOPED_TRACE(axes.name());
    const Numbers numbers{.precision = Precision::fp16};
    run<Gpt>(
        axes,
        numbers,
        [&](const auto& accelerator, auto& model, auto& optimizer) {
          Outcome ignored;
          const auto weights = [&] {
            return named(
                accelerator.get_state_dict(model, {.rank0_only = false}));
          };
          const double scale =
              accelerator.gradient_state().scaler()->get_scale();
          const Weights before = weights();
          const Tensor words = torch::arange(2 * kTime).view({2, kTime}) % 7;
          accelerator.backward(model(words, torch::arange(kTime)).sum());
          const bool is_last =
              accelerator.process_index() == accelerator.num_processes() - 1;
          if (is_last) {
            model->mlp->parameters().front().mutable_grad().fill_(
                std::numeric_limits<float>::infinity());
          }
          optimizer.step();
          EXPECT_TRUE(accelerator.optimizer_step_was_skipped());
          EXPECT_EQ(
              accelerator.gradient_state().scaler()->get_scale(), scale / 2);
          for (const auto& [name, weight] : weights())
            EXPECT_TRUE(torch::equal(weight, before.at(name))) << name;
        });
  }
}

TEST(ComposedOptions, AverageByHooks) {
  for (const CommHook hook : {CommHook::fp16, CommHook::bf16}) {
    const Numbers numbers{
        .steps = 4,
        .tolerance = hook == CommHook::fp16 ? 2e-3 : 1e-2,
        .adapt = [hook](AcceleratorOptions& options) {
          options.parallel.replicate_options.comm_hook = hook;
        }};
    const Outcome expected = outcome_on({}, Numbers{.steps = 4});
    expect_like(expected, {.replicate = 2, .tensor = 2}, numbers);
    expect_like(expected, {.context = 2, .tensor = 2}, numbers);
    expect_like(expected, {.replicate = 2, .context = 2}, numbers);
    // Nothing is averaged.
    expect_like(expected, {.tensor = 2}, numbers);
  }
}

// PowerSGD approximates the slices of matrices; every rank has the same result
// for replicated parameters.
TEST(ComposedOptions, AverageByPowerSgd) {
  const Numbers numbers{.steps = 4, .adapt = [](AcceleratorOptions& options) {
                          options.parallel.replicate_options.comm_hook =
                              CommHook::power_sgd;
                        }};
  run<Gpt>(
      {.replicate = 2, .tensor = 2},
      numbers,
      [&](const auto& accelerator, auto& model, auto& optimizer) {
        Outcome outcome;
        train(accelerator, model, optimizer, numbers, 0, 4, outcome);
        EXPECT_LT(outcome.losses.back(), outcome.losses.front());
        for (const auto& item : model->named_parameters()) {
          if (!item.key().starts_with("norm")) continue;
          const std::vector<std::vector<float>> all = gather_object(
              std::vector<std::vector<float>>{
                  {item.value().template data_ptr<float>(),
                   item.value().template data_ptr<float>() +
                       item.value().numel()}},
              accelerator.mesh().batch_group());
          for (const auto& each : all) EXPECT_EQ(each, all.front());
        }
      });
}

struct LocalSteps {
  LocalSGDOptions options = {.local_sgd_steps = 2};
  Numbers numbers = {};
  /// Steps after the scope, in which gradients are averaged again.
  int steps_after = 2;
};

// The first rank's weights after three steps of LocalSGD and some without.
Weights weights_of_local_steps(const Axes& axes, const LocalSteps& how = {}) {
  Weights weights;
  run<Gpt>(
      axes,
      how.numbers,
      [&](const auto& accelerator, auto& model, auto& optimizer) {
        Outcome ignored;
        int micro_step = 0;
        const auto step = [&] {
          const int first = micro_step;
          micro_step += how.numbers.window;
          train(
              accelerator,
              model,
              optimizer,
              how.numbers,
              first,
              micro_step,
              ignored);
        };
        LocalSGD local(accelerator, model, how.options);
        for (int i = 0; i < 3; ++i) {
          step();
          local.step();
        }
        local.finish();
        for (int i = 0; i < how.steps_after; ++i) step();
        const Weights own =
            named(accelerator.get_state_dict(model, {.rank0_only = false}));
        if (accelerator.is_main_process()) weights = own;
      });
  return weights;
}

void expect_same(const Weights& found, const Weights& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (const auto& [name, weight] : expected)
    EXPECT_TRUE(torch::allclose(found.at(name), weight, 2e-5, 2e-5)) << name;
}

TEST(ComposedOptions, StepLocallyWhereLayersAreSplit) {
  // Two replicas with split or full layers, and one with nothing to average.
  for (const int replicate : {1, 2}) {
    SCOPED_TRACE(replicate);
    const Weights expected = weights_of_local_steps({.replicate = replicate});
    expect_same(
        weights_of_local_steps({.replicate = replicate, .tensor = 2}),
        expected);
  }
}

// Ranks that share sequences step as one rank with the full sequences would.
TEST(ComposedOptions, StepLocallyWhereSequencesAreDivided) {
  for (const int window : {1, 3}) {
    SCOPED_TRACE(window);
    const LocalSteps how{.numbers = {.window = window}};
    const Weights expected = weights_of_local_steps({.replicate = 2}, how);
    // Averaging gradients gives different weights.
    const LocalSteps without{
        .options = {.local_sgd_steps = 2, .enabled = false},
        .numbers = how.numbers};
    const Weights synced = weights_of_local_steps({.replicate = 2}, without);
    EXPECT_FALSE(torch::allclose(
        synced.at("out.weight"), expected.at("out.weight"), 2e-5, 2e-5));
    expect_same(
        weights_of_local_steps({.replicate = 2, .context = 2}, how), expected);
    expect_same(
        weights_of_local_steps(
            {.replicate = 2, .context = 2, .tensor = 2}, how),
        expected);
    expect_same(
        weights_of_local_steps({.context = 2}, how),
        weights_of_local_steps({}, how));
  }
}

template <class Lomo, class Body>
void run_lomo(
    const Axes& axes,
    const std::function<std::unique_ptr<Lomo>(Gpt&)>& make,
    Body&& body) {
  run_on_ranks(axes.num_ranks(), [&](const WorldOptions& world) {
    const Accelerator accelerator(options_of(axes, {}, Gpt::plan(), world));
    const auto net = std::make_shared<Gpt>();
    const std::unique_ptr<Lomo> lomo = make(*net);
    const auto [model, optimizer] = accelerator.prepare(net, *lomo);
    const Mesh& mesh = accelerator.mesh();
    for (int step = 0; step < 3; ++step) {
      const Tensor words = (torch::arange(2 * kTime) * 7 + step)
                               .remainder(kWords)
                               .view({2, kTime})
                               .chunk(mesh.batch_count())
                               .at(static_cast<std::size_t>(mesh.batch_rank()))
                               .clone();
      const Tensor targets = (words + 3).remainder(kWords);
      const Tensor positions = torch::arange(kTime);
      const ContextParallelScope sequence = accelerator.maybe_context_parallel(
          {words, targets, positions}, {1, 1, 0});
      const Tensor sum = nn::functional::cross_entropy(
          model(words, positions).flatten(0, 1),
          targets.flatten(),
          nn::functional::CrossEntropyFuncOptions().reduction(torch::kSum));
      accelerator.lomo_backward(
          sequence.mean(sum, torch::tensor(targets.numel())), 0.1);
      optimizer.step();
      optimizer.zero_grad();
    }
    body(accelerator, model);
  });
}

std::unique_ptr<optim::Lomo> make_lomo(Gpt& net) {
  return std::make_unique<optim::Lomo>(
      net.parameters(),
      optim::LomoOptions{.weight_decay = 0.1, .clip_grad_value = 0.05});
}

TEST(ComposedOptions, UpdateInsideBackward) {
  const auto weights_on = [](const Axes& axes) {
    Weights weights;
    run_lomo<optim::Lomo>(
        axes, make_lomo, [&](const auto& accelerator, auto& model) {
          const Weights own =
              named(accelerator.get_state_dict(model, {.rank0_only = false}));
          if (accelerator.is_main_process()) weights = own;
        });
    return weights;
  };
  const Weights expected = weights_on({});
  EXPECT_FALSE(torch::equal(
      expected.at("out.weight"), std::make_shared<Gpt>()->out->weight));
  for (const Axes& axes : kAxes) {
    SCOPED_TRACE(axes.name());
    const Weights found = weights_on(axes);
    for (const auto& [name, weight] : expected) {
      EXPECT_TRUE(torch::allclose(found.at(name), weight, 2e-5, 2e-5)) << name;
    }
  }
}

TEST(ComposedOptions, RefuseUpdatesInsideBackwardThatNeedMoreThanSlices) {
  const auto refuse = [](auto make) {
    using Lomo = typename decltype(make(std::declval<Gpt&>()))::element_type;
    expect_error<ConfigError>(
        [&] {
          run_lomo<Lomo>(
              {.context = 2, .tensor = 2}, make, [](const auto&, auto&) {});
        },
        "ranks hold slices of this tensor-parallel model's; use Lomo without "
        "clip_grad_norm");
  };
  refuse([](Gpt& net) {
    return std::make_unique<optim::AdaLomo>(net.parameters());
  });
  refuse([](Gpt& net) {
    return std::make_unique<optim::Lomo>(
        net.parameters(), optim::LomoOptions{.clip_grad_norm = 1});
  });
}

}  // namespace composed_options_test
}  // namespace accelerate
