#include <accelerate/accelerate.h>

#include <nlohmann/json.hpp>

#include "base/files/files.h"
#include "format/torch/torch_file.h"
#include "support/expect_error.h"
#include "support/temporary_directory.h"

namespace accelerate {
namespace save_object_test {

using detail::Pickle;
using testing::expect_error;
using testing::TemporaryDirectory;

std::vector<std::string> files_in(const TemporaryDirectory& directory) {
  std::vector<std::string> names;
  for (const auto& entry :
       std::filesystem::directory_iterator(directory.path())) {
    names.push_back(entry.path().filename().string());
  }
  return names;
}

TEST(Save, WritesStructureAsPythonHasIt) {
  const TemporaryDirectory directory;
  const auto file = directory / "object.bin";
  const std::map<std::string, std::tuple<int, double, std::optional<bool>>>
      object{{"a", {3, 0.5, true}}, {"b", {-4, 1e300, std::nullopt}}};
  save(object, file);
  const detail::TorchFile read(file);
  const Pickle::Value root = read.root();
  ASSERT_EQ(root.kind(), Pickle::Kind::dict);
  ASSERT_EQ(root.size(), 2U);
  EXPECT_EQ(root.key(0).text(), "a");
  EXPECT_EQ(root.value(0).kind(), Pickle::Kind::tuple);
  EXPECT_EQ(root.value(0).item(0).integer(), 3);
  EXPECT_EQ(root.value(0).item(1).real(), 0.5);
  EXPECT_EQ(root.value(0).item(2).kind(), Pickle::Kind::boolean);
  EXPECT_EQ(root.value(1).item(0).integer(), -4);
  EXPECT_EQ(root.value(1).item(2).kind(), Pickle::Kind::none);
  EXPECT_THAT(files_in(directory), ::testing::ElementsAre("object.bin"));
}

TEST(Save, WritesStatesListsAndJson) {
  const TemporaryDirectory directory;
  const auto file = directory / "object.bin";
  save(StateDict{{"step", std::int64_t{7}}, {"w", torch::ones({2})}}, file);
  {
    const detail::TorchFile read(file);
    EXPECT_EQ(read.root().key(0).text(), "step");
    EXPECT_EQ(read.root().value(0).integer(), 7);
    EXPECT_TRUE(read.tensor(read.root().value(1)).has_value());
  }
  save(std::vector<std::string>{"x", "y"}, file);
  {
    const detail::TorchFile read(file);
    ASSERT_EQ(read.root().kind(), Pickle::Kind::list);
    EXPECT_EQ(read.root().item(1).text(), "y");
  }
  save(nlohmann::json{{"epoch", 2}, {"loss", {0.5, nullptr}}}, file);
  const detail::TorchFile read(file);
  ASSERT_EQ(read.root().kind(), Pickle::Kind::dict);
  EXPECT_EQ(read.root().value(0).integer(), 2);
  EXPECT_EQ(read.root().value(1).item(0).real(), 0.5);
  EXPECT_EQ(read.root().value(1).item(1).kind(), Pickle::Kind::none);
}

TEST(Save, WritesTensorsThatReadBackEqual) {
  const TemporaryDirectory directory;
  torch::nn::Linear net(2, 3);
  const at::Tensor view = torch::arange(6).reshape({2, 3}).t();
  for (const bool safe : {false, true}) {
    const auto file = directory / (safe ? "w.safetensors" : "w.bin");
    save(
        std::map<std::string, at::Tensor>{
            {"view", view}, {"empty", torch::zeros({0, 2})}},
        file,
        {.safe_serialization = safe});
    const auto read = load_state_dict(file);
    EXPECT_TRUE(torch::equal(read.at("view"), view));
    EXPECT_EQ(read.at("empty").size(1), 2);
    save(get_state_dict(*net), file, {.safe_serialization = safe});
    EXPECT_TRUE(torch::equal(load_state_dict(file).at("weight"), net->weight));
  }
}

TEST(Save, WritesSharedMemoryOnce) {
  const TemporaryDirectory directory;
  const at::Tensor tensor = torch::rand({1000});
  const std::map<std::string, at::Tensor> tied{{"a", tensor}, {"b", tensor}};
  save(tied, directory / "w.bin");
  EXPECT_LT(std::filesystem::file_size(directory / "w.bin"), 8000U);
  const auto both = load_state_dict(directory / "w.bin");
  EXPECT_TRUE(torch::equal(both.at("b"), tensor));
  save(tied, directory / "w.safetensors", {.safe_serialization = true});
  const auto first = load_state_dict(directory / "w.safetensors");
  EXPECT_EQ(first.size(), 1U);
  EXPECT_TRUE(torch::equal(first.at("a"), tensor));
}

TEST(Save, RefusesWhatAFormatCannotHold) {
  const TemporaryDirectory directory;
  const auto file = directory / "object";
  const std::map<std::string, int> numbers{{"a", 1}};
  expect_error<ConfigError>(
      [&] { save(numbers, file, {.safe_serialization = true}); },
      "tensors by name and nothing else");
  expect_error<ConfigError>(
      [&] { save(std::map<double, int>{{0.5, 1}}, file); },
      "must be strings or integers for save(), but are neither");
  expect_error<ConfigError>(
      [&] { save(~std::uint64_t{0}, file); }, "numbers must fit into 63 bits");
  expect_error<ConfigError>(
      [&] { save(torch::empty({2}, at::kMeta), file); }, "no values");
  expect_error<Error>([&] { save(1, directory / "none" / "f"); }, "none");
  EXPECT_TRUE(files_in(directory).empty());
}

TEST(SaveModel, WritesFilesOfTheSizeAndFormatAsked) {
  // Three weights of 256 bytes.
  torch::nn::Sequential net;
  for (int i = 0; i < 3; ++i)
    net->push_back(
        torch::nn::Linear(torch::nn::LinearOptions(8, 8).bias(false)));
  const auto files_with = [&](const SaveModelOptions& options) {
    const TemporaryDirectory directory;
    save_model(*net, directory.path(), options);
    return files_in(directory);
  };
  using ::testing::UnorderedElementsAre;
  EXPECT_THAT(files_with({}), UnorderedElementsAre("model.safetensors"));
  EXPECT_THAT(
      files_with({.safe_serialization = false}),
      UnorderedElementsAre("pytorch_model.bin"));
  EXPECT_THAT(
      files_with({.max_shard_size = 512}),
      UnorderedElementsAre(
          "model-00001-of-00002.safetensors",
          "model-00002-of-00002.safetensors",
          "model.safetensors.index.json"));
  EXPECT_THAT(
      files_with({.max_shard_size = 300, .safe_serialization = false}),
      UnorderedElementsAre(
          "pytorch_model-00001-of-00003.bin",
          "pytorch_model-00002-of-00003.bin",
          "pytorch_model-00003-of-00003.bin",
          "pytorch_model.bin.index.json"));
}

TEST(MergeDicts, LetsTheSourceWin) {
  const StateDict merged = merge_dicts(
      StateDict{
          {"a", std::int64_t{1}},
          {"inner", StateDict{{"x", 0.5}}},
          {"list", std::vector<double>{1}}},
      StateDict{
          {"a", std::int64_t{2}},
          {"b", std::int64_t{3}},
          {"inner", StateDict{{"x", 0.25}, {"y", 4.0}}},
          {"list", StateDict{}}});
  EXPECT_EQ(merged.get<std::int64_t>("a"), 1);
  EXPECT_EQ(merged.get<std::int64_t>("b"), 3);
  EXPECT_EQ(merged.get<StateDict>("inner").get<double>("x"), 0.5);
  EXPECT_EQ(merged.get<StateDict>("inner").get<double>("y"), 4);
  EXPECT_EQ(merged.get<std::vector<double>>("list"), (std::vector<double>{1}));
  using Nested = std::map<std::string, std::map<std::string, int>>;
  EXPECT_EQ(
      merge_dicts(
          Nested{{"a", {{"x", 1}}}, {"c", {}}},
          Nested{{"a", {{"x", 0}, {"y", 2}}}, {"b", {{"z", 3}}}}),
      (Nested{{"a", {{"x", 1}, {"y", 2}}}, {"b", {{"z", 3}}}, {"c", {}}}));
}

TEST(MergeFsdpWeights, MergesACheckpointIntoOneFile) {
  const TemporaryDirectory directory;
  torch::nn::Linear net(4, 3);
  {
    const Accelerator accelerator(
        {.world = {.rank = 0, .size = 1, .device = at::kCPU}});
    auto model = accelerator.prepare(net);
    accelerator.save_state(directory / "checkpoint").wait();
  }
  const auto checkpoint = directory / "checkpoint";
  merge_fsdp_weights(checkpoint, directory / "safe");
  EXPECT_TRUE(torch::equal(
      load_state_dict(directory / "safe" / "model.safetensors").at("weight"),
      net->weight));
  // What an earlier merge wrote in the other format is not found again.
  for (const bool is_safe : {true, false, true}) {
    merge_fsdp_weights(
        checkpoint, directory / "twice", {.safe_serialization = is_safe});
    EXPECT_EQ(
        std::filesystem::exists(directory / "twice" / "model.safetensors"),
        is_safe);
    EXPECT_EQ(
        std::filesystem::exists(directory / "twice" / "pytorch_model.bin"),
        !is_safe);
  }
  expect_error<ConfigError>(
      [&] {
        merge_fsdp_weights(
            checkpoint, checkpoint / "merged", {.remove_checkpoint_dir = true});
      },
      "is inside the checkpoint");
  EXPECT_TRUE(std::filesystem::exists(checkpoint));
  merge_fsdp_weights(
      checkpoint,
      directory / "unsafe",
      {.safe_serialization = false, .remove_checkpoint_dir = true});
  EXPECT_TRUE(torch::equal(
      load_state_dict(directory / "unsafe" / "pytorch_model.bin").at("bias"),
      net->bias));
  EXPECT_FALSE(std::filesystem::exists(checkpoint));
  expect_error<ConfigError>(
      [&] { merge_fsdp_weights(directory.path(), directory / "x"); },
      "does not hold a sharded checkpoint");
}

TEST(ConvertBytes, WritesSizesForPeople) {
  EXPECT_EQ(convert_bytes(1536), "1.5 KB");
  EXPECT_EQ(convert_bytes(10), "10 bytes");
}

}  // namespace save_object_test
}  // namespace accelerate
