#include "engines/deepspeed/deepspeed_batches.h"

#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <accelerate/error.h>

namespace accelerate::detail {
namespace deepspeed_batches_test {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using Json = nlohmann::json;

Json filled(const Json& config, const DeepSpeedBatches& batches) {
  return Json::parse(fill_batch_sizes(config.dump(), batches));
}

const Json kAutomatic{
    {"train_batch_size", "auto"},
    {"train_micro_batch_size_per_gpu", "auto"},
    {"gradient_accumulation_steps", "auto"}};

// Two micro-steps on three ranks.
DeepSpeedBatches with_loaders(std::vector<std::int64_t> sizes) {
  return {
      .micro_batches = std::move(sizes),
      .gradient_accumulation_steps = 2,
      .num_ranks = 3};
}

TEST(DeepSpeedBatches, FillInTheSmallestLoader) {
  EXPECT_EQ(
      filled(kAutomatic, with_loaders({8, 4})),
      (Json{
          {"train_batch_size", 24},
          {"train_micro_batch_size_per_gpu", 4},
          {"gradient_accumulation_steps", 2}}));
  EXPECT_EQ(
      filled(kAutomatic, with_loaders({})),
      (Json{
          {"train_batch_size", "auto"},
          {"train_micro_batch_size_per_gpu", "auto"},
          {"gradient_accumulation_steps", 2}}));
  EXPECT_EQ(filled(Json::object(), with_loaders({8})), Json::object());
}

TEST(DeepSpeedBatches, FollowTheConfiguration) {
  Json config = kAutomatic;
  config["train_micro_batch_size_per_gpu"] = 8;
  EXPECT_EQ(filled(config, with_loaders({8, 4}))["train_batch_size"], 48);
  EXPECT_EQ(filled(config, with_loaders({}))["train_batch_size"], 48);
  config = kAutomatic;
  config["train_batch_size"] = 48;
  EXPECT_EQ(
      filled(config, with_loaders({8, 4}))["train_micro_batch_size_per_gpu"],
      8);
}

TEST(DeepSpeedBatches, RefuseContradictions) {
  const auto fill = [](const char* key, const Json& value) {
    return [=] {
      static_cast<void>(filled({{key, value}}, with_loaders({4, 8})));
    };
  };
  EXPECT_THAT(
      fill("train_micro_batch_size_per_gpu", 5),
      ThrowsMessage<ConfigError>(
          HasSubstr("micro-batches of 5 on each rank, but the loaders passed "
                    "to prepare() have 4, 8")));
  EXPECT_THAT(
      fill("train_batch_size", 30),
      ThrowsMessage<ConfigError>(HasSubstr("correct train_batch_size")));
  EXPECT_THAT(
      fill("train_batch_size", 25),
      ThrowsMessage<ConfigError>(
          HasSubstr("is 25, but 6 micro-batches make a step")));
  EXPECT_THAT(
      fill("train_batch_size", "many"),
      ThrowsMessage<ConfigError>(HasSubstr("whole number")));
  EXPECT_THAT(
      [] {
        static_cast<void>(filled(
            {{"train_batch_size", 48}, {"train_micro_batch_size_per_gpu", 4}},
            with_loaders({4})));
      },
      ThrowsMessage<ConfigError>(HasSubstr("6 micro-batches of 4")));
}

TEST(DeepSpeedBatches, RefuseSizesWhoseProductOverflows) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  Json config = kAutomatic;
  config["train_micro_batch_size_per_gpu"] = kMost;
  EXPECT_THAT(
      [&] { static_cast<void>(filled(config, with_loaders({}))); },
      ThrowsMessage<ConfigError>(
          HasSubstr("more samples than can be counted")));
  // 6 times this wraps around to 2.
  config["train_micro_batch_size_per_gpu"] = 3074457345618258603;
  config["train_batch_size"] = 2;
  EXPECT_THAT(
      [&] { static_cast<void>(filled(config, with_loaders({}))); },
      ThrowsMessage<ConfigError>(
          HasSubstr("6 micro-batches of 3074457345618258603 make a step")));
  config["train_micro_batch_size_per_gpu"] = kMost / 6;
  config["train_batch_size"] = "auto";
  EXPECT_EQ(
      filled(config, with_loaders({}))["train_batch_size"], kMost / 6 * 6);
}

}  // namespace deepspeed_batches_test
}  // namespace accelerate::detail
