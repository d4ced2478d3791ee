// Models with an offloaded base that an Accelerator trains, saves and resumes.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include <torch/torch.h>

#include <accelerate/accelerate.h>

#include "support/expect_error.h"
#include "support/run_on_ranks.h"
#include "support/temporary_directory.h"

namespace accelerate::prepare_dispatched_test {

namespace fs = std::filesystem;
namespace nn = torch::nn;
using testing::expect_error;
using testing::run_on_ranks;
using testing::TemporaryDirectory;
using torch::Tensor;

constexpr std::int64_t kWidth = 8;

struct BlockImpl : nn::Module {
  Tensor forward(const Tensor& x) {
    return norm(x + down(torch::relu(up(x))) + adapt(x));
  }
  nn::Linear up = register_module("up", nn::Linear(kWidth, 2 * kWidth));
  nn::Linear down = register_module("down", nn::Linear(2 * kWidth, kWidth));
  nn::BatchNorm1d norm = register_module("norm", nn::BatchNorm1d(kWidth));
  nn::Linear adapt = register_module("adapt", nn::Linear(kWidth, kWidth));
};
TORCH_MODULE(Block);

struct NetImpl : nn::Module {
  Tensor forward(const Tensor& x) { return head(second(first(x))); }
  Block first = register_module("first", Block());
  Block second = register_module("second", Block());
  nn::Linear head = register_module("head", nn::Linear(kWidth, 1));
};
TORCH_MODULE(Net);

// Ranks are threads that share the default generator, so each passes its own.
Tensor random(at::IntArrayRef sizes, at::Generator& generator) {
  return torch::randn(sizes, generator);
}

// Everything but the adapters, the norms and the head is frozen.
Net make_net() {
  Net net;
  {
    const torch::NoGradGuard no_grad;
    auto generator = at::detail::createCPUGenerator(5);
    for (auto& parameter : net->parameters())
      parameter.copy_(0.3 * random(parameter.sizes(), generator));
  }
  for (auto& block : {net->first, net->second}) {
    for (auto& layer : {block->up, block->down})
      for (auto& parameter : layer->parameters())
        parameter.requires_grad_(false);
  }
  return net;
}

// The frozen layers are on the disk or in host memory.
DeviceMap offloaded() {
  return {
      {"first", "cpu"},
      {"first.up", "disk"},
      {"first.down", "disk"},
      {"second", "cpu"},
      {"second.up", "disk"},
      {"second.down", "disk"},
      {"head", "cpu"}};
}

std::vector<Tensor> trained_of(const Net& net) {
  std::vector<Tensor> trained;
  for (auto& parameter : net->parameters())
    if (parameter.requires_grad()) trained.push_back(parameter);
  return trained;
}

class PrepareDispatched : public ::testing::Test {
 protected:
  static void train(Accelerator& accelerator, auto& model, auto& optimizer) {
    for (int step = 0; step < 4; ++step) {
      auto generator =
          at::detail::createCPUGenerator(static_cast<std::uint64_t>(
              100 + step * 10 + accelerator.process_index()));
      const Tensor x = random({6, kWidth}, generator);
      optimizer.zero_grad();
      accelerator.backward(model(x).pow(2).mean());
      optimizer.step();
    }
  }

  static void expect_equal(const Net& net, const std::vector<Tensor>& values) {
    const auto found = trained_of(net);
    ASSERT_EQ(found.size(), values.size());
    for (std::size_t i = 0; i < found.size(); ++i)
      EXPECT_TRUE(found[i].equal(values[i])) << i;
  }

  static std::vector<Tensor> copies(const Net& net) {
    std::vector<Tensor> values;
    for (const Tensor& each : trained_of(net))
      values.push_back(each.detach().clone());
    return values;
  }

  TemporaryDirectory directory_;
  fs::path folder_ = directory_ / "offload";
};

// Every rank gets the losses and weights of a model in memory. A checkpoint
// holds the trained weights and resumes them.
TEST_F(PrepareDispatched, TrainsSavesAndResumesWhatIsNotOffloaded) {
  for (const int num_ranks : {1, 2}) {
    for (const bool recomputes : {false, true}) {
      SCOPED_TRACE(num_ranks * 10 + recomputes);
      const fs::path root = directory_ /
          (std::to_string(num_ranks) + (recomputes ? "recomputing" : ""));
      fs::create_directories(root);
      run_on_ranks(num_ranks, [&](const WorldOptions& world) {
        AcceleratorOptions options{.project_dir = root, .world = world};
        if (recomputes)
          options.parallel.activation_checkpointing =
              ActivationCheckpointingOptions{
                  .auto_wrap_policy = AutoWrapPolicy::transformer_based_wrap,
                  .transformer_cls_names_to_wrap = {"Block"}};
        Accelerator accelerator(options);
        const std::string rank = std::to_string(accelerator.process_index());
        Net twin = make_net();
        {
          torch::optim::SGD sgd(
              trained_of(twin), torch::optim::SGDOptions(0.1).momentum(0.9));
          auto [model, optimizer] = accelerator.prepare(twin, sgd);
          train(accelerator, model, optimizer);
          train(accelerator, model, optimizer);
          accelerator.free_memory();
        }
        Net net = make_net();
        const DispatchOptions dispatching{
            .device_map = offloaded(),
            .offload_dir = root / ("offload" + rank),
            .prefetch_memory = 1};
        auto big = dispatch_model(net, dispatching);
        EXPECT_TRUE(verify_device_map(*net));
        const std::vector<Tensor> before = copies(net);
        {
          torch::optim::SGD sgd(
              trained_of(net), torch::optim::SGDOptions(0.1).momentum(0.9));
          auto [model, optimizer] = accelerator.prepare(net, sgd);
          train(accelerator, model, optimizer);
          accelerator.save_state(root / "state");
          train(accelerator, model, optimizer);
          expect_equal(net, trained_of(twin));
          // Repeats the step from the checkpoint.
          accelerator.load_state(root / "state");
          train(accelerator, model, optimizer);
          expect_equal(net, trained_of(twin));
          accelerator.free_memory();
        }
        EXPECT_TRUE(has_offloaded_params(*net->first->up));
        EXPECT_GT(big.stats().num_fetches, 8);
        EXPECT_TRUE(net->first->norm->running_mean.equal(
            twin->first->norm->running_mean));
      });
      const auto saved = load_state_dict(root / "state");
      EXPECT_TRUE(saved.contains("first.adapt.weight"));
      EXPECT_TRUE(saved.contains("first.norm.running_mean"));
      EXPECT_FALSE(saved.contains("first.up.weight"));
    }
  }
}

TEST_F(PrepareDispatched, SaveModelWritesOffloadedWeightsToo) {
  const torch::NoGradGuard no_grad;
  Net net = make_net();
  WeightList expected;
  for (const auto& [name, tensor] : get_state_dict(*net))
    expected.emplace_back(name, tensor.clone());
  auto big = disk_offload(net, folder_, {.prefetch_memory = 1});
  const auto expect_all = [&](const auto& find) {
    for (const auto& [name, value] : expected)
      EXPECT_TRUE(find(name).equal(value)) << name;
  };
  save_model(*big.module(), directory_ / "saved");
  const auto saved = load_state_dict(directory_ / "saved");
  ASSERT_EQ(saved.size(), expected.size());
  {
    SCOPED_TRACE("safetensors");
    expect_all([&](const std::string& name) { return saved.at(name); });
  }
  // In shards smaller than a layer, and as torch.save files.
  save_model(
      *big.module(),
      directory_ / "torch",
      {.max_shard_size = 300, .safe_serialization = false});
  const auto shards = load_state_dict(directory_ / "torch");
  ASSERT_EQ(shards.size(), expected.size());
  SCOPED_TRACE("torch.save");
  expect_all([&](const std::string& name) { return shards.at(name); });

  const WeightList values = get_state_dict_offloaded_model(*net);
  ASSERT_EQ(values.size(), expected.size());
  big.dispatch().offload();
  for (std::size_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(values[i].first, expected[i].first);
    EXPECT_TRUE(values[i].second.equal(expected[i].second));
  }
  WeightList part;
  for (const auto& [name, tensor] : get_state_dict(*net))
    part.emplace_back(name, tensor);
  part = get_state_dict_from_offload(*net->head, "head.weight", part);
  EXPECT_TRUE(
      part[part.size() - 2].second.equal(expected[expected.size() - 2].second));
  EXPECT_TRUE(part.back().second.equal(expected.back().second));
}

TEST_F(PrepareDispatched, SavesAPreparedModelWithAllWeights) {
  const Net twin = make_net();
  Net net = make_net();
  Accelerator accelerator;
  auto big =
      dispatch_model(net, {.device_map = offloaded(), .offload_dir = folder_});
  auto model = accelerator.prepare(net);
  accelerator.save_model(model, directory_ / "saved");
  const auto saved = load_state_dict(directory_ / "saved");
  const WeightList all = accelerator.get_state_dict(model);
  ASSERT_EQ(all.size(), saved.size());
  for (const auto& [name, value] : get_state_dict(*twin))
    EXPECT_TRUE(saved.at(name).equal(value)) << name;
  for (const auto& [name, value] : all)
    EXPECT_TRUE(saved.at(name).equal(value)) << name;
  // Weights that cannot be loaded are reported before any is loaded.
  const auto before = copies(net);
  Net other;
  save_model(*other, directory_ / "other");
  expect_error<CheckpointError>(
      [&] { accelerator.load_model(model, directory_ / "other"); },
      "first.up.weight is offloaded");
  expect_error<CheckpointError>(
      [&] { load_model(*net, directory_ / "other"); },
      "first.up.weight is offloaded");
  expect_equal(net, before);
  accelerator.load_model(
      model, directory_ / "other", {.skip = {"*.up.*", "*.down.*"}});
  EXPECT_TRUE(net->head->weight.equal(other->head->weight));
}

TEST_F(PrepareDispatched, RefusesToTrainOffloadedWeights) {
  Net net = make_net();
  net->first->up->weight.requires_grad_(true);
  auto big =
      dispatch_model(net, {.device_map = offloaded(), .offload_dir = folder_});
  Accelerator accelerator;
  expect_error<ConfigError>(
      [&] { static_cast<void>(accelerator.prepare(net)); },
      "first.up.weight are offloaded, and an optimizer cannot change");
  run_on_ranks(2, [&](const WorldOptions& world) {
    Net frozen = make_net();
    auto dispatched = cpu_offload(frozen->first->up);
    Accelerator sharding({.parallel = {.shard = 2}, .world = world});
    expect_error<ConfigError>(
        [&] { static_cast<void>(sharding.prepare(frozen)); },
        "which shard = 2 would have to split");
  });
}

// A quantized base with adapters.
TEST_F(PrepareDispatched, TrainsBesideQuantisedWeights) {
  Net net = make_net();
  const QuantizedModel quantized = load_and_quantize_model(
      *net,
      {.load_in_4bit = true,
       .bnb_4bit_quant_type = "nf4",
       .skip_modules = std::vector<std::string>{"adapt", "head"}});
  Accelerator accelerator({.project_dir = directory_.path()});
  torch::optim::SGD sgd(trained_of(net), 0.1);
  const auto before = copies(net);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  train(accelerator, model, optimizer);
  EXPECT_FALSE(net->head->weight.equal(before[before.size() - 2]));
  EXPECT_EQ(quantized.weight("first.up").type(), QuantizationType::nf4);
  const auto after = copies(net);
  accelerator.save_state(directory_ / "state");
  train(accelerator, model, optimizer);
  accelerator.load_state(directory_ / "state");
  expect_equal(net, after);
}

}  // namespace accelerate::prepare_dispatched_test
