#include <accelerate/offload.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <string>

#include <accelerate/error.h>
#include <accelerate/load_checkpoint.h>
#include <accelerate/save.h>

#include "base/files/files.h"
#include "support/expect_error.h"
#include "support/temporary_directory.h"

namespace accelerate {
namespace offload_test {

namespace fs = std::filesystem;
using ::testing::ElementsAre;

fs::file_time_type long_ago(const fs::path& file) {
  const auto time = fs::last_write_time(file) - std::chrono::hours(24);
  fs::last_write_time(file, time);
  return time;
}

TEST(OffloadFolder, HasAcceleratesFormat) {
  const testing::TemporaryDirectory folder;
  offload_state_dict(
      folder.path(),
      {{"a.weight", torch::tensor({{1.F, 2.F}, {3.F, 4.F}})},
       {"c", torch::tensor(5, torch::kLong)}});
  EXPECT_EQ(
      detail::read_file(folder.path() / "index.json"),
      "{\n  \"a.weight\": {\n    \"dtype\": \"float32\",\n    \"shape\": [\n"
      "      2,\n      2\n    ]\n  },\n  \"c\": {\n    \"dtype\": \"int64\",\n"
      "    \"shape\": []\n  }\n}");
  EXPECT_EQ(
      detail::read_file(folder.path() / "c.dat"),
      std::string("\5\0\0\0\0\0\0\0", 8));
}

TEST(OffloadFolder, IsNotWrittenAgainIfItHoldsTheWeights) {
  const testing::TemporaryDirectory folder;
  const torch::Tensor weight = torch::ones({64});
  offload_state_dict(folder.path(), {{"w", weight}});
  const auto before = long_ago(folder.path() / "w.dat");
  offload_state_dict(folder.path(), {{"w", weight}});
  EXPECT_EQ(fs::last_write_time(folder.path() / "w.dat"), before);
  offload_state_dict(folder.path(), {{"w", weight * 2}});
  EXPECT_NE(fs::last_write_time(folder.path() / "w.dat"), before);
}

TEST(OffloadFolder, RefusesFilesOfAnotherSizeAndNamesOutsideOfIt) {
  const testing::TemporaryDirectory folder;
  offload_state_dict(folder.path(), {{"w", torch::ones({4})}});
  fs::resize_file(folder.path() / "w.dat", 8);
  const OffloadedWeightsLoader loader({.save_folder = folder.path()});
  testing::expect_error<CheckpointError>(
      [&] { static_cast<void>(loader.at("w")); }, "w.dat");
  testing::expect_error<ConfigError>(
      [&] { offload_weight(torch::ones({1}), "../w", folder.path()); }, "../w");
}

TEST(OffloadFolder, ForgetsWhatAKilledWriterLeft) {
  const testing::TemporaryDirectory folder;
  fs::create_directories(folder.path() / ".filling");
  std::ofstream(folder.path() / ".filling" / "half") << "x";
  offload_state_dict(folder.path(), {{"w", torch::ones({4})}});
  EXPECT_FALSE(fs::exists(folder.path() / ".filling"));
  EXPECT_EQ(
      OffloadedWeightsLoader({.save_folder = folder.path()})
          .at("w")
          .sum()
          .item<float>(),
      4);
}

TEST(WeightsLoader, PrefersMemoryAndKnowsPrefixes) {
  const testing::TemporaryDirectory folder;
  offload_state_dict(
      folder.path(), {{"a.x", torch::ones({2})}, {"b.x", torch::ones({3})}});
  const OffloadedWeightsLoader loader(
      {.state_dict = {{"a.x", torch::zeros({2})}},
       .save_folder = folder.path()});
  EXPECT_THAT(loader.keys(), ElementsAre("a.x", "b.x"));
  EXPECT_EQ(loader.at("a.x").sum().item<float>(), 0);
  const PrefixedDataset below(loader, "b.");
  EXPECT_THAT(below.keys(), ElementsAre("x"));
  EXPECT_EQ(below.at("x").sum().item<float>(), 3);
  testing::expect_error<ConfigError>(
      [&] { static_cast<void>(loader.at("a.y")); }, "a.x");
  testing::expect_error<ConfigError>(
      [] { OffloadedWeightsLoader({}); }, "needs a state_dict");
}

TEST(WeightsLoader, TakesAnIndexAndPutsWeightsOnADevice) {
  const testing::TemporaryDirectory folder, other;
  offload_state_dict(
      folder.path(), {{"a", torch::ones({2})}, {"b", torch::ones({3})}});
  const fs::path file = other.path() / "weights.safetensors";
  save(
      std::map<std::string, at::Tensor>{{"renamed", torch::full({2}, 5.0)}},
      file,
      {.safe_serialization = true});
  OffloadIndex index;
  index.set("a", {.safetensors_file = file, .weight_name = "renamed"});
  const OffloadedWeightsLoader loader(
      {.save_folder = folder.path(), .index = index});
  EXPECT_THAT(loader.keys(), ElementsAre("a", "b"));
  EXPECT_TRUE(torch::equal(loader.at("a"), torch::full({2}, 5.0)));
  EXPECT_TRUE(torch::equal(loader.at("b"), torch::ones({3})));
  EXPECT_TRUE(loader.at("b").is_cpu());
  const OffloadedWeightsLoader on_device(
      {.save_folder = folder.path(), .device = at::kMeta});
  EXPECT_TRUE(on_device.at("b").is_meta());
  EXPECT_EQ(on_device.at("b").sizes(), at::IntArrayRef({3}));
}

struct TwoImpl : torch::nn::Module {
  TwoImpl() {
    first = register_module("first", torch::nn::Linear(4, 4));
    second = register_module("second", torch::nn::Linear(4, 4));
    count = register_buffer("count", torch::zeros({1}));
  }
  torch::nn::Linear first{nullptr}, second{nullptr};
  torch::Tensor count;
};
TORCH_MODULE(Two);

class LoadCheckpoint : public ::testing::Test {
 protected:
  LoadCheckpoint() { save_model(*saved_, directory_.path() / "model"); }

  fs::path checkpoint() const { return directory_.path() / "model"; }
  fs::path folder() const { return directory_.path() / "offload"; }

  testing::TemporaryDirectory directory_;
  Two saved_;
  Two net_;
};

TEST_F(LoadCheckpoint, FollowsTheDeviceMap) {
  load_checkpoint_in_model(
      *net_,
      checkpoint(),
      {.device_map = {{"first", "cpu"}, {"second", "disk"}, {"count", "cpu"}},
       .offload_folder = folder()});
  EXPECT_TRUE(torch::equal(net_->first->weight, saved_->first->weight));
  EXPECT_TRUE(net_->second->weight.is_meta());
  const OffloadedWeightsLoader loader({.save_folder = folder()});
  EXPECT_TRUE(torch::equal(loader.at("second.weight"), saved_->second->weight));
}

TEST_F(LoadCheckpoint, ConvertsFloatingPointTensors) {
  load_checkpoint_in_model(
      *net_,
      checkpoint(),
      {.device_map = {{"", "cpu"}},
       .dtype = torch::kHalf,
       .keep_in_fp32_modules = {"second"}});
  EXPECT_EQ(net_->first->weight.scalar_type(), torch::kHalf);
  EXPECT_EQ(net_->second->weight.scalar_type(), torch::kFloat);
}

TEST_F(LoadCheckpoint, NeedsAPlaceForEveryTensorAndAFolderForTheDisk) {
  testing::expect_error<ConfigError>(
      [&] {
        load_checkpoint_in_model(
            *net_, checkpoint(), {.device_map = {{"first", "cpu"}}});
      },
      "second");
  testing::expect_error<ConfigError>(
      [&] {
        load_checkpoint_in_model(
            *net_, checkpoint(), {.device_map = {{"", "disk"}}});
      },
      "offload_folder");
}

TEST_F(LoadCheckpoint, IsStrictIfAsked) {
  torch::nn::Linear other(4, 4);
  EXPECT_NO_THROW(load_checkpoint_in_model(*other, checkpoint()));
  testing::expect_error<CheckpointError>(
      [&] { load_checkpoint_in_model(*other, checkpoint(), {.strict = true}); },
      "first.weight");
}

}  // namespace offload_test
}  // namespace accelerate
