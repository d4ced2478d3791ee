// Accelerator::save().
#include <accelerate/accelerate.h>
#include <accelerate/optimizers.h>

#include <fstream>

#include "format/torch/torch_file.h"
#include "format/weights/weights.h"
#include "support/expect_error.h"
#include "support/run_on_ranks.h"
#include "support/temporary_directory.h"

namespace accelerate {
namespace accelerator_save_test {

namespace fs = std::filesystem;
using testing::expect_error;
using testing::run_on_ranks;
using testing::TemporaryDirectory;

const WorldOptions kAlone{.rank = 0, .size = 1};

Accelerator make(const WorldOptions& world = kAlone) {
  AcceleratorOptions options;
  options.world = world;
  return Accelerator(options);
}

TEST(SaveObject, WritesStatesAsBothFormats) {
  const TemporaryDirectory directory;
  const Accelerator accelerator = make();
  const StateDict tensors{
      {"a", torch::arange(3)},
      {"inner", StateDict{{"b", torch::ones({2, 2}).t()}}}};
  for (const bool is_safe : {false, true}) {
    const fs::path file =
        directory / (is_safe ? "new/out.safetensors" : "new/out.bin");
    accelerator.save(tensors, file, is_safe);
    const auto found = load_state_dict(file);
    ASSERT_EQ(found.size(), 2u);
    EXPECT_TRUE(found.at("a").equal(torch::arange(3)));
    EXPECT_TRUE(found.at("inner.b").equal(torch::ones({2, 2})));
  }
  std::size_t num_files = 0;
  for ([[maybe_unused]] const auto& entry :
       fs::directory_iterator(directory / "new")) {
    ++num_files;
  }
  EXPECT_EQ(num_files, 2u);
}

// No format here has it, so that nothing is written that cannot be read.
TEST(SaveObject, NamesTensorsOfComplex128BeforeItWrites) {
  const TemporaryDirectory directory;
  const Accelerator accelerator = make();
  torch::nn::Linear net(2, 2);
  net->register_parameter("z", torch::ones({2}, torch::kComplexDouble));
  torch::optim::SGD sgd(net->parameters(), 1);
  const auto [model, optimizer] = accelerator.prepare(net, sgd);
  const StateDict state{{"z", torch::ones({2}, torch::kComplexDouble)}};
  const std::string phrase = "safetensors has no dtype ComplexDouble";
  for (const bool is_safe : {false, true}) {
    const std::string name = is_safe ? "out.safetensors" : "out.bin";
    expect_error<ConfigError>(
        [&] { accelerator.save(state, directory / name, is_safe); }, phrase);
    expect_error<CheckpointError>(
        [&, &model = model] {
          accelerator.save_model(
              model, directory / "model", {.safe_serialization = is_safe});
        },
        phrase);
  }
  expect_error<CheckpointError>(
      [&] { accelerator.save_state(directory / "state"); }, phrase);
  for (const auto& entry : fs::recursive_directory_iterator(directory.path()))
    EXPECT_FALSE(entry.is_regular_file()) << entry.path();
}

TEST(SaveObject, WritesNumbersAndTextsForTorchOnly) {
  const TemporaryDirectory directory;
  const Accelerator accelerator = make();
  const StateDict state{{"epoch", std::int64_t{3}}, {"name", std::string("x")}};
  accelerator.save(state, directory / "state.pkl");
  const detail::TorchFile file(directory / "state.pkl");
  EXPECT_EQ(file.root().value(0).integer(), 3);
  EXPECT_EQ(file.root().value(1).text(), "x");
  expect_error<ConfigError>(
      [&] { accelerator.save(state, directory / "state.safetensors", true); },
      "\"epoch\" is not a tensor");
  EXPECT_FALSE(fs::exists(directory / "state.safetensors"));
  expect_error<ConfigError>(
      [&] {
        accelerator.save(torch::ones(2), directory / "one.safetensors", true);
      },
      "holds tensors by name");
}

TEST(SaveObject, ReplacesAFileOnlyWhenTheNewOneIsComplete) {
  const TemporaryDirectory directory;
  const Accelerator accelerator = make();
  const fs::path file = directory / "tensor.pt";
  accelerator.save(torch::arange(5), file);
  expect_error<ConfigError>(
      [&] { accelerator.save(torch::empty({2}, torch::kMeta), file); },
      "it has no values");
  const detail::TorchFile saved(file);
  EXPECT_EQ(saved.tensor(saved.root())->sizes, (safetensors::Shape{5}));
}

TEST(SaveObject, WritesModelsOnTheMainProcessShardedOnesInFull) {
  const TemporaryDirectory directory;
  std::vector<at::Tensor> weights;
  run_on_ranks(2, [&](const WorldOptions& world) {
    AcceleratorOptions options;
    options.world = world;
    options.parallel.deepspeed = DeepSpeedOptions{.zero_stage = 3};
    const Accelerator accelerator(options);
    torch::manual_seed(1);
    torch::nn::Linear net(6, 4);
    if (world.rank == 0) weights = {net->weight.detach().clone()};
    torch::optim::SGD sgd(net->parameters(), 0.1);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    accelerator.save(model, directory / "model.safetensors", true);
    accelerator.save(
        StateDict{{"rank", std::int64_t{*world.rank}}}, directory / "rank.pkl");
    accelerator.finish();
  });
  EXPECT_TRUE(load_state_dict(directory / "model.safetensors")
                  .at("weight")
                  .equal(weights.at(0)));
  const detail::TorchFile file(directory / "rank.pkl");
  EXPECT_EQ(file.root().value(0).integer(), 0);
}

}  // namespace accelerator_save_test
}  // namespace accelerate
