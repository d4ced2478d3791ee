#include <accelerate/accelerate.h>

#include "support/expect_error.h"

namespace accelerate {
namespace deepspeed_test {

using testing::expect_error;

std::vector<at::Tensor> parameters() {
  return {torch::ones({3}, torch::requires_grad())};
}

TEST(DeepSpeedOptimizer, IsBuiltFromTheConfiguration) {
  const auto adam = optimizer_from_deepspeed(
      R"({"optimizer": {"type": "Adam", "params": {
          "lr": "auto", "betas": [0.8, 0.99], "eps": 1e-7,
          "weight_decay": "auto", "torch_adam": true}}})",
      parameters(),
      {.lr = 0.02, .weight_decay = 0.3});
  auto* const adamw = dynamic_cast<optim::AdamW*>(adam.get());
  ASSERT_NE(adamw, nullptr);
  const auto& options = dynamic_cast<const torch::optim::AdamWOptions&>(
      adamw->param_groups()[0].options());
  EXPECT_EQ(options.lr(), 0.02);
  EXPECT_EQ(options.weight_decay(), 0.3);
  EXPECT_EQ(options.betas(), std::make_tuple(0.8, 0.99));
  EXPECT_EQ(options.eps(), 1e-7);
  const auto kind = [](const std::string& section) {
    return optimizer_from_deepspeed(
        "{\"optimizer\": " + section + "}", parameters());
  };
  EXPECT_NE(
      dynamic_cast<optim::Adam*>(
          kind(R"({"type": "Adam", "params": {"adam_w_mode": false}})").get()),
      nullptr);
  EXPECT_NE(
      dynamic_cast<optim::SGD*>(
          kind(R"({"type": "SGD", "params": {"lr": 1, "momentum": 0.9}})")
              .get()),
      nullptr);
  EXPECT_NE(
      dynamic_cast<optim::Adagrad*>(kind(R"({"type": "Adagrad"})").get()),
      nullptr);
  expect_error<ConfigError>(
      [&] { kind(R"({"type": "OneBitAdam"})"); }, "Adam, AdamW, SGD, Adagrad");
  expect_error<ConfigError>(
      [&] { kind(R"({"type": "AdamW", "params": {"freeze_step": 1}})"); },
      "freeze_step");
  expect_error<ConfigError>(
      [&] { kind(R"({"type": "AdamW", "params": {"eps": "auto"}})"); },
      "optimizer.params.eps");
  expect_error<ConfigError>(
      [&] { optimizer_from_deepspeed("{}", parameters()); },
      "no section \"optimizer\"");
  expect_error<ConfigError>(
      [&] { optimizer_from_deepspeed("{", parameters()); },
      "no section \"optimizer\"");
}

std::vector<double> rates(
    const std::string& section,
    int count,
    const DummyScheduler& automatic = {}) {
  torch::optim::SGD sgd(parameters(), 0.1);
  const auto scheduler = scheduler_from_deepspeed(
      "{\"scheduler\": " + section + "}", sgd, automatic);
  std::vector<double> found;
  for (int step = 0; step < count; ++step) {
    found.push_back(sgd.param_groups()[0].options().get_lr());
    scheduler->step();
  }
  return found;
}

void expect_near(
    const std::vector<double>& found,
    const std::vector<double>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i)
    EXPECT_NEAR(found[i], expected[i], 1e-9) << i;
}

TEST(DeepSpeedScheduler, FollowsDeepSpeedsFormulas) {
  expect_near(
      rates(
          R"({"type": "WarmupLR", "params": {"warmup_max_lr": "auto",
              "warmup_num_steps": 4, "warmup_type": "linear"}})",
          7),
      {0, 0, 0.025, 0.05, 0.075, 0.1, 0.1});
  expect_near(
      rates(
          R"({"type": "WarmupLR", "params": {"warmup_min_lr": 0.02,
              "warmup_max_lr": 0.1, "warmup_num_steps": "auto"}})",
          5,
          {.warmup_num_steps = 3}),
      {0.02,
       0.02,
       0.02 + 0.08 * std::log(2) / std::log(3),
       0.02 + 0.08 * std::log(3) / std::log(3),
       0.1});
  expect_near(
      rates(
          R"({"type": "WarmupDecayLR", "params": {"warmup_max_lr": 0.1,
              "warmup_num_steps": 2, "total_num_steps": "auto",
              "warmup_type": "linear"}})",
          9,
          {.total_num_steps = 6}),
      {0, 0, 0.05, 0.1, 0.075, 0.05, 0.025, 0, 0});
  expect_near(
      rates(
          R"({"type": "WarmupCosineLR", "params": {"total_num_steps": 6,
              "warmup_num_steps": 2, "warmup_type": "linear",
              "cos_min_ratio": 0.2}})",
          7),
      {0,
       0,
       0.05,
       0.02 + 0.08 * (1 + std::cos(M_PI * 0.25)) / 2,
       0.02 + 0.08 * 0.5,
       0.02 + 0.08 * (1 + std::cos(M_PI * 0.75)) / 2,
       0.02});
  expect_error<ConfigError>(
      [] { rates(R"({"type": "WarmupDecayLR"})", 1); }, "total_num_steps");
  expect_error<ConfigError>(
      [] { rates(R"({"type": "OneCycle"})", 1); }, "WarmupCosineLR");
}

TEST(DeepSpeedConfig, IsReportedByTheAccelerator) {
  DeepSpeedOptions options;
  options.hf_ds_config =
      R"({"zero_optimization": {"stage": 2},
          "optimizer": {"type": "AdamW", "params": {"lr": "auto"}}})";
  const Accelerator accelerator(
      {.cpu = true, .parallel = {.deepspeed = options}});
  const auto optimizer = optimizer_from_deepspeed(
      accelerator.state().deepspeed_config, parameters(), {.lr = 0.5});
  EXPECT_EQ(optimizer->param_groups()[0].options().get_lr(), 0.5);
  EXPECT_EQ(Accelerator({.cpu = true}).state().deepspeed_config, "");
}

}  // namespace deepspeed_test
}  // namespace accelerate
