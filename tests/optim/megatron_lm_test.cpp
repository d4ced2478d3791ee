// Schedules that Megatron-LM's settings describe.
#include <cmath>
#include <numbers>

#include <accelerate/accelerate.h>

#include "support/expect_error.h"

namespace accelerate {
namespace megatron_lm_test {

using testing::expect_error;

std::vector<at::Tensor> parameters() {
  return {torch::ones({3}, torch::requires_grad())};
}

// The learning rates of the first `count` steps, with a base rate of 1.
std::vector<double> rates(
    const MegatronLMOptions& options,
    int count,
    const MegatronLMDummyScheduler& automatic = {}) {
  torch::optim::SGD sgd(parameters(), 1.0);
  const auto schedule = scheduler_from_megatron_lm(options, sgd, automatic);
  std::vector<double> found;
  for (int step = 0; step < count; ++step) {
    found.push_back(sgd.param_groups()[0].options().get_lr());
    schedule->step();
  }
  return found;
}

void expect_near(
    const std::vector<double>& found,
    const std::vector<double>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i)
    EXPECT_NEAR(found[i], expected[i], 1e-12) << "step " << i;
}

TEST(MegatronScheduler, FollowsMegatronsFormulas) {
  const auto with = [&](MegatronLMOptions options) {
    options.train_iters = 6;
    options.lr_warmup_iters = 2;
    options.min_lr = 0.2;
    return rates(options, 8);
  };
  expect_near(with({}), {0, 0.5, 1, 0.8, 0.6, 0.4, 0.2, 0.2});
  expect_near(with({.lr_decay_style = "constant"}), {0, 0.5, 1, 1, 1, 1, 1, 1});
  const double quarter = std::cos(std::numbers::pi / 4);
  expect_near(
      with({.lr_decay_style = "cosine"}),
      {0, 0.5, 1, 0.6 + 0.4 * quarter, 0.6, 0.6 - 0.4 * quarter, 0.2, 0.2});
  expect_near(
      with({.lr_decay_style = "inverse-square-root"}),
      {0,
       0.5,
       1,
       std::sqrt(2.0 / 3),
       std::sqrt(0.5),
       std::sqrt(0.4),
       std::sqrt(1.0 / 3),
       0.2});
  // A schedule that is shorter than the training run.
  expect_near(
      with({.lr_decay_iters = 4}), {0, 0.5, 1, 0.6, 0.2, 0.2, 0.2, 0.2});
}

TEST(MegatronScheduler, DecaysAtTheEnd) {
  const auto with = [&](const std::string& style) {
    return rates(
        {.train_iters = 6,
         .lr_decay_style = "WSD",
         .other_megatron_args = R"({"lr_wsd_decay_iters": 4)" + style + "}"},
        7);
  };
  expect_near(
      with(R"(, "lr_wsd_decay_style": "linear")"),
      {1, 1, 1, 0.75, 0.5, 0.25, 0});
  expect_near(
      with(R"(, "lr_wsd_decay_style": "minus_sqrt")"),
      {1, 1, 1, 0.5, 1 - std::sqrt(0.5), 1 - std::sqrt(0.75), 0});
  expect_near(
      with(R"(, "lr_wsd_decay_style": "cosine")"),
      {1,
       1,
       1,
       0.5 + 0.5 * std::sqrt(0.5),
       0.5,
       0.5 - 0.5 * std::sqrt(0.5),
       0});
  const double root = std::pow(0.5, 0.25);
  expect_near(
      with(""),
      {1,
       1,
       1,
       2 * root - 1,
       2 * root * root - 1,
       2 * root * root * root - 1,
       0});
}

TEST(MegatronScheduler, TakesItsLengthFromTheProgram) {
  // 12 steps in one process are 4 steps on three ranks.
  const MegatronLMDummyScheduler automatic{
      .total_num_steps = 12,
      .warmup_num_steps = 6,
      .num_data_parallel_ranks = 3};
  expect_near(rates({}, 6, automatic), {0, 0.5, 1, 0.5, 0, 0});
  // The options take precedence.
  expect_near(
      rates({.train_iters = 3, .lr_warmup_iters = 1}, 4, automatic),
      {0, 1, 0.5, 0});
  expect_near(
      rates(
          {.lr_warmup_iters = 0,
           .lr_warmup_fraction = 0.5,
           .other_megatron_args = R"({"lr_warmup_init": 0.4})"},
          5,
          automatic),
      {0.4, 0.7, 1, 0.5, 0});
}

TEST(MegatronScheduler, CountsSamples) {
  const MegatronLMDummyScheduler automatic{.global_batch_size = 10};
  expect_near(
      rates({.train_samples = 40, .lr_warmup_samples = 20}, 5, automatic),
      {0, 0.5, 1, 0.5, 0});
  expect_near(
      rates(
          {.train_samples = 99,
           .lr_decay_samples = 25,
           .lr_warmup_fraction = 0.2},
          4,
          automatic),
      {0, 0.75, 0.25, 0});
  // Without a warm-up, the rate decays with the number of samples.
  expect_near(
      rates(
          {.train_iters = 3, .lr_decay_style = "inverse-square-root"},
          3,
          automatic),
      {1, std::sqrt(0.1), std::sqrt(0.05)});
  expect_error<ConfigError>(
      [] { rates({.train_samples = 40}, 1); }, "global_batch_size");
}

template <class Options, class Optimizer>
std::vector<double> weight_decays(
    const MegatronLMOptions& options,
    Optimizer&& optimizer,
    int count) {
  const auto schedule = scheduler_from_megatron_lm(options, optimizer);
  std::vector<double> found;
  for (int step = 0; step < count; ++step) {
    found.push_back(
        dynamic_cast<const Options&>(optimizer.param_groups()[0].options())
            .weight_decay());
    schedule->step();
  }
  return found;
}

TEST(MegatronScheduler, ChangesWeightDecay) {
  MegatronLMOptions options{
      .train_iters = 4,
      .weight_decay_incr_style = "linear",
      .start_weight_decay = 0.1,
      .end_weight_decay = 0.5};
  expect_near(
      weight_decays<torch::optim::AdamWOptions>(
          options, optim::AdamW(parameters()), 6),
      {0.1, 0.2, 0.3, 0.4, 0.5, 0.5});
  options.weight_decay_incr_style = "cosine";
  expect_near(
      weight_decays<torch::optim::SGDOptions>(
          options, torch::optim::SGD(parameters(), 1.0), 5),
      {0.1, 0.3 - 0.2 * std::sqrt(0.5), 0.3, 0.3 + 0.2 * std::sqrt(0.5), 0.5});
  // This optimizer has no weight decay.
  torch::optim::LBFGS lbfgs(parameters());
  expect_error<ConfigError>(
      [&] { scheduler_from_megatron_lm(options, lbfgs); },
      "an optimizer without a known one");
  // A schedule that does not change weight decay.
  EXPECT_EQ(
      weight_decays<torch::optim::AdamWOptions>(
          {.train_iters = 4},
          optim::AdamW(
              parameters(), torch::optim::AdamWOptions().weight_decay(0.3)),
          3),
      (std::vector<double>{0.3, 0.3, 0.3}));
}

TEST(MegatronScheduler, ContinuesFromItsState) {
  const MegatronLMOptions options{
      .train_iters = 4,
      .weight_decay_incr_style = "linear",
      .start_weight_decay = 0.1,
      .end_weight_decay = 0.5};
  torch::optim::AdamW first(parameters(), 1.0), second(parameters(), 9.0);
  const auto schedule = scheduler_from_megatron_lm(options, first);
  schedule->step();
  const auto resumed = scheduler_from_megatron_lm(options, second);
  resumed->load_state_dict(schedule->state_dict());
  for (int step = 1; step < 5; ++step) {
    const auto read = [](torch::optim::AdamW& adamw) {
      const auto& found = dynamic_cast<const torch::optim::AdamWOptions&>(
          adamw.param_groups()[0].options());
      return std::pair(found.lr(), found.weight_decay());
    };
    EXPECT_EQ(read(second), read(first)) << step;
    schedule->step();
    resumed->step();
  }
}

TEST(MegatronScheduler, RefusesWhatMegatronRefuses) {
  const auto refused = [](const MegatronLMOptions& options,
                          const std::string& why,
                          const MegatronLMDummyScheduler& automatic = {}) {
    expect_error<ConfigError>([&] { rates(options, 1, automatic); }, why);
  };
  refused({}, "the length of the schedule is unknown");
  refused(
      {.train_iters = 3, .lr_warmup_iters = 3},
      "the warm-up must be shorter than the schedule, but takes 3 of 3 "
      "iterations");
  refused(
      {.train_iters = 3, .lr_warmup_iters = 1, .lr_warmup_fraction = 0.1},
      "lr_warmup_fraction is set beside");
  refused(
      {.train_iters = 3, .lr_decay_style = "WSD"}, "needs lr_wsd_decay_iters");
  refused(
      {.train_iters = 3,
       .lr_decay_style = "WSD",
       .other_megatron_args =
           R"({"lr_wsd_decay_iters": 4, "lr_wsd_decay_style": "cubic"})"},
      "but is \"cubic\"");
  refused(
      {.train_iters = 3,
       .lr_decay_style = "WSD",
       .other_megatron_args = R"({"lr_wsd_decay_iters": 4})"},
      "takes 4 of its 3 iterations");
  refused(
      {.train_iters = 3, .start_weight_decay = 0.1},
      "weight_decay_incr_style is constant");
  refused(
      {.train_iters = 3, .weight_decay_incr_style = "linear"},
      "linear needs start_weight_decay and end_weight_decay");
  refused(
      {.train_iters = 3,
       .weight_decay_incr_style = "linear",
       .start_weight_decay = 0.2,
       .end_weight_decay = 0.1},
      "goes from 0.2 to 0.1");
  refused(
      {.train_iters = 3, .train_samples = 30}, "train_samples counts samples");
  refused(
      {.train_samples = 30},
      "train_samples counts samples",
      {.total_num_steps = 12, .global_batch_size = 10});
  refused(
      {.train_iters = 3, .lr_decay_samples = 30},
      "lr_decay_samples counts samples");
  refused(
      {.lr_decay_iters = 3, .lr_warmup_samples = 10},
      "lr_warmup_samples counts samples");
  refused(
      {.train_samples = 30, .lr_warmup_iters = 1},
      "lr_warmup_iters counts iterations",
      {.global_batch_size = 10});
  refused(
      {.train_iters = 3, .other_megatron_args = R"({"lr_wsd_decay_iters": 2})"},
      "lr_wsd_decay_iters belongs to lr_decay_style WSD");
  refused(
      {.train_iters = 3,
       .other_megatron_args = R"({"lr_wsd_decay_style": "cosine"})"},
      "lr_wsd_decay_style belongs to lr_decay_style WSD");
  refused({.lr_decay_style = "steep"}, "lr_decay_style is \"steep\"");
  refused(
      {},
      "total_num_steps must be at least 0, but is -1",
      {.total_num_steps = -1});
  refused(
      {},
      "warmup_num_steps must be at least 0, but is -1",
      {.warmup_num_steps = -1});
  refused(
      {},
      "num_data_parallel_ranks must be at least 1, but is 0",
      {.num_data_parallel_ranks = 0});
  refused(
      {},
      "global_batch_size must be at least 0, but is -1",
      {.global_batch_size = -1});
}

}  // namespace megatron_lm_test
}  // namespace accelerate
