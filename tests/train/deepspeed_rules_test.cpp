// What a DeepSpeed configuration requires of the program around it.
#include <nlohmann/json.hpp>

#include <accelerate/accelerate.h>

#include "support/expect_error.h"
#include "support/run_on_ranks.h"

namespace accelerate {
namespace deepspeed_rules_test {

using testing::expect_error;
using testing::run_on_ranks;

AcceleratorOptions with_config(
    const std::string& keys,
    const WorldOptions& world = {.rank = 0, .size = 1, .device = at::kCPU}) {
  AcceleratorOptions options{.world = world};
  options.parallel.deepspeed.emplace();
  options.parallel.deepspeed->hf_ds_config =
      R"({"zero_optimization": {"stage": 2})" + keys + "}";
  return options;
}

TEST(DeepSpeedRules, PrecisionComesFromTheConfiguration) {
  const Accelerator bf16(with_config(R"(, "bf16": {"enabled": true})"));
  EXPECT_EQ(bf16.state().mixed_precision, Precision::bf16);
  EXPECT_THAT(
      bf16.explain_settings(),
      ::testing::HasSubstr(
          "mixed_precision = bf16  (DeepSpeed configuration)"));
  torch::nn::Linear net(2, 1);
  auto model = bf16.prepare(net);
  EXPECT_EQ(
      model.call([](torch::nn::LinearImpl& linear) {
        return linear.forward(torch::ones({1, 2})).scalar_type();
      }),
      at::kBFloat16);
  const Accelerator fp16(with_config(R"(, "fp16": {"enabled": true})"));
  EXPECT_TRUE(fp16.gradient_state().scaler());
  EXPECT_EQ(
      Accelerator(with_config("")).state().mixed_precision, Precision::no);
  const auto refused = [](Precision precision, const std::string& why) {
    AcceleratorOptions options = with_config(R"(, "bf16": {"enabled": true})");
    options.mixed_precision = precision;
    expect_error<ConfigError>([&] { Accelerator{options}; }, why);
  };
  refused(Precision::no, "mixed_precision is no");
  refused(Precision::fp16, "enables bf16");
}

TEST(DeepSpeedRules, SectionsReplaceWhatCodeMakes) {
  const std::string optimizer =
      R"(, "optimizer": {"type": "SGD", "params": {"lr": 1}})";
  const std::string scheduler =
      R"(, "scheduler": {"type": "WarmupLR", "params": {}})";
  torch::nn::Linear net(2, 1);
  torch::optim::SGD sgd(net->parameters(), 1.0);
  {
    const Accelerator accelerator(with_config(optimizer));
    expect_error<ConfigError>(
        [&] { accelerator.prepare(net, sgd); }, "optimizer_from_deepspeed()");
    const auto made = optimizer_from_deepspeed(
        accelerator.state().deepspeed_config, net->parameters());
    EXPECT_NO_THROW(accelerator.prepare(net, *made));
  }
  {
    const Accelerator accelerator(with_config(scheduler));
    optim::StepLR step_lr(sgd, {.step_size = 1});
    expect_error<ConfigError>(
        [&] { accelerator.prepare(net, sgd, step_lr); },
        "scheduler_from_deepspeed()");
    torch::optim::StepLR torch_lr(sgd, 1, 0.5);
    expect_error<ConfigError>(
        [&] { accelerator.prepare(net, sgd, torch_lr); },
        "section \"scheduler\"");
    const auto made =
        scheduler_from_deepspeed(accelerator.state().deepspeed_config, sgd);
    EXPECT_NO_THROW(accelerator.prepare(net, sgd, *made));
  }
}

nlohmann::json config_of(const Accelerator& accelerator) {
  return nlohmann::json::parse(accelerator.state().deepspeed_config);
}

TEST(DeepSpeedRules, BatchSizesAreThoseOfALoader) {
  const auto data = [] { return TensorDataset{torch::ones({32, 2})}; };
  const auto batches = [](std::int64_t size, bool splits = false) {
    return DataLoaderOptions{.batch_size = size, .split_batches = splits};
  };
  const std::string automatic =
      R"(, "train_batch_size": "auto",
          "train_micro_batch_size_per_gpu": "auto",
          "gradient_accumulation_steps": 2, "gradient_clipping": "auto")";
  run_on_ranks(2, [&](const WorldOptions& world) {
    {
      const Accelerator accelerator(with_config(automatic, world));
      accelerator.prepare(
          DataLoader(data(), batches(8)), DataLoader(data(), batches(4)));
      EXPECT_EQ(config_of(accelerator)["train_micro_batch_size_per_gpu"], 4);
      EXPECT_EQ(config_of(accelerator)["train_batch_size"], 16);
      EXPECT_EQ(config_of(accelerator)["gradient_clipping"], 1.0);
      // Later loaders can have other sizes.
      EXPECT_NO_THROW(accelerator.prepare(DataLoader(data(), batches(16))));
    }
    {
      const Accelerator accelerator(with_config(automatic, world));
      accelerator.prepare(DataLoader(data(), batches(8, /*splits=*/true)));
      EXPECT_EQ(config_of(accelerator)["train_micro_batch_size_per_gpu"], 4);
    }
    const Accelerator accelerator(
        with_config(R"(, "train_micro_batch_size_per_gpu": 4)", world));
    expect_error<ConfigError>(
        [&] { accelerator.prepare(DataLoader(data(), batches(8))); },
        "micro-batches of 4");
    EXPECT_NO_THROW(accelerator.prepare(
        DataLoader(data(), batches(8)), DataLoader(data(), batches(4))));
    const Accelerator total(with_config(R"(, "train_batch_size": 9)", world));
    torch::nn::Linear net(2, 1);
    expect_error<ConfigError>([&] { total.prepare(net); }, "train_batch_size");
  });
}

TEST(DeepSpeedRules, AutomaticClippingActs) {
  run_on_ranks(2, [](const WorldOptions& world) {
    for (const std::string keys : {R"(, "gradient_clipping": "auto")", ""}) {
      const Accelerator accelerator(with_config(keys, world));
      torch::nn::Linear net(torch::nn::LinearOptions(1, 1).bias(false));
      torch::nn::init::zeros_(net->weight);
      torch::optim::SGD sgd(net->parameters(), 1.0);
      auto [model, optimizer] = accelerator.prepare(net, sgd);
      accelerator.backward(model(torch::full({1, 1}, 200.0F)).sum());
      optimizer.step();
      EXPECT_NEAR(net->weight.item<float>(), keys.empty() ? -200 : -1, 1e-4);
    }
  });
}

}  // namespace deepspeed_rules_test
}  // namespace accelerate
