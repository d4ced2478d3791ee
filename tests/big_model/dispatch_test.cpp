#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>

#include <accelerate/big_model.h>
#include <accelerate/empty_weights.h>
#include <accelerate/error.h>
#include <accelerate/module_tensors.h>
#include <accelerate/weights.h>

#include "big_model/random_model.h"
#include "support/expect_error.h"
#include "support/run_on_ranks.h"
#include "support/temporary_directory.h"

namespace accelerate::dispatch_test {

namespace fs = std::filesystem;
namespace nn = torch::nn;
using testing::copy_values;
using testing::expect_error;
using testing::RandomModel;
using testing::run_on_ranks;
using testing::TemporaryDirectory;
using torch::Tensor;

struct NetImpl : nn::Module {
  Tensor forward(const Tensor& x) {
    return head(torch::relu(middle(torch::relu(first(x)))));
  }
  nn::Linear first = register_module("first", nn::Linear(8, 64));
  nn::Linear middle = register_module("middle", nn::Linear(64, 64));
  nn::Linear head = register_module("head", nn::Linear(64, 4));
};
TORCH_MODULE(Net);

// Bytes of weight and bias of each layer.
constexpr std::int64_t kFirst = (8 + 1) * 64 * 4;
constexpr std::int64_t kMiddle = (64 + 1) * 64 * 4;

class DispatchModel : public ::testing::Test {
 protected:
  DispatchModel() { torch::manual_seed(3); }

  TemporaryDirectory directory_;
  fs::path folder_ = directory_.path() / "offload";
  Net net_;
  Tensor x_ = torch::randn({5, 8});
};

TEST_F(DispatchModel, ComputesTheSameFromDiskToTheLastBit) {
  const torch::NoGradGuard no_grad;
  const Tensor expected = net_(x_);
  auto big = dispatch_model(
      net_, {.device_map = {{"", "disk"}}, .offload_dir = folder_});
  EXPECT_TRUE(has_offloaded_params(*net_->middle));
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(big(x_).equal(expected));
  EXPECT_TRUE(fs::exists(folder_ / "middle.weight.dat"));
}

TEST_F(DispatchModel, KeepsWhatTheMapKeepsInMemory) {
  const torch::NoGradGuard no_grad;
  const Tensor expected = net_(x_);
  auto big = dispatch_model(
      net_,
      {.device_map = {{"first", "cpu"}, {"middle", "disk"}, {"head", "cpu"}},
       .offload_dir = folder_});
  EXPECT_FALSE(has_offloaded_params(*net_->first));
  EXPECT_TRUE(net_->first->weight.data_ptr() != nullptr);
  EXPECT_TRUE(big(x_).equal(expected));
  EXPECT_EQ(big.stats().num_fetches, 1);
  EXPECT_EQ(big.stats().fetched_bytes, std::uint64_t{kMiddle});
  EXPECT_FALSE(fs::exists(folder_ / "first.weight.dat"));
}

TEST_F(DispatchModel, HoldsAtMostTheMemoryThatItMay) {
  const torch::NoGradGuard no_grad;
  auto big = dispatch_model(
      net_,
      {.device_map = {{"", "disk"}},
       .offload_dir = folder_,
       .prefetch_memory = kMiddle + kFirst});
  for (int i = 0; i < 4; ++i) static_cast<void>(big(x_));
  EXPECT_LE(big.stats().peak_bytes, std::uint64_t{kMiddle + kFirst});
  EXPECT_GE(big.stats().fetched_bytes, std::uint64_t{4 * kMiddle});
  big.dispatch().offload();
  EXPECT_EQ(big.stats().bytes, 0U);
}

TEST_F(DispatchModel, FetchesEachWeightOncePerForwardIfEverythingFits) {
  const torch::NoGradGuard no_grad;
  auto big = dispatch_model(
      net_,
      {.device_map = {{"", "disk"}},
       .offload_dir = folder_,
       .prefetch_memory = "1GB"});
  for (int i = 0; i < 5; ++i) static_cast<void>(big(x_));
  EXPECT_EQ(big.stats().num_fetches, 3);
}

TEST_F(DispatchModel, ExpectsWhatComesNextOnceItHasSeenAForward) {
  const torch::NoGradGuard no_grad;
  auto big = dispatch_model(
      net_, {.device_map = {{"", "disk"}}, .offload_dir = folder_});
  static_cast<void>(big(x_));
  static_cast<void>(big(x_));
  const std::int64_t before = big.stats().num_surprises;
  for (int i = 0; i < 10; ++i) static_cast<void>(big(x_));
  EXPECT_EQ(big.stats().num_surprises, before);
}

TEST_F(DispatchModel, ReadsWeightsAgainInABackward) {
  Net twin;
  copy_values(net_, twin);
  for (auto& parameter : twin->middle->parameters())
    parameter.requires_grad_(false);
  for (auto& parameter : net_->middle->parameters())
    parameter.requires_grad_(false);
  twin(x_).sum().backward();
  auto big = dispatch_model(
      net_,
      {.device_map = {{"first", "cpu"}, {"middle", "disk"}, {"head", "cpu"}},
       .offload_dir = folder_});
  Tensor loss = big(x_).sum();
  big.dispatch().offload();
  loss.backward();
  EXPECT_TRUE(net_->first->weight.grad().equal(twin->first->weight.grad()));
  EXPECT_TRUE(net_->head->bias.grad().equal(twin->head->bias.grad()));
  EXPECT_GE(big.stats().num_fetches, 2);
}

TEST_F(DispatchModel, GivesGradientsToOffloadedWeights) {
  Net twin;
  copy_values(net_, twin);
  twin(x_).sum().backward();
  auto big = cpu_offload(net_);
  big(x_).sum().backward();
  EXPECT_TRUE(net_->middle->weight.grad().equal(twin->middle->weight.grad()));
}

TEST_F(DispatchModel, RefusesToChangeAnOffloadedWeight) {
  auto big = dispatch_model(
      net_, {.device_map = {{"", "disk"}}, .offload_dir = folder_});
  const torch::NoGradGuard no_grad;
  expect_error<Error>(
      [&] { net_->middle->weight.mul_(2); }, "align_module_device()");
}

TEST_F(DispatchModel, ChangesWeightsInsideOfAlignModuleDevice) {
  const torch::NoGradGuard no_grad;
  Net twin;
  copy_values(net_, twin);
  twin->middle->weight.mul_(2);
  const Tensor expected = twin(x_);
  for (const bool on_disk : {false, true}) {
    SCOPED_TRACE(on_disk);
    Net net;
    copy_values(net_, net);
    auto big = on_disk ? disk_offload(net, folder_) : cpu_offload(net);
    static_cast<void>(big(x_));
    align_module_device(*net->middle, std::nullopt, [&] {
      return net->middle->weight.mul_(2);
    });
    EXPECT_TRUE(big(x_).equal(expected));
    EXPECT_TRUE(has_offloaded_params(*net->middle));
  }
}

TEST_F(DispatchModel, RefusesToReadAnOffloadedWeightBehindTheGate) {
  auto big = dispatch_model(
      net_, {.device_map = {{"", "disk"}}, .offload_dir = folder_});
  expect_error<c10::Error>(
      [&] { static_cast<void>(net_->middle->weight.data_ptr()); },
      "middle.weight is offloaded");
}

TEST_F(DispatchModel, SaysThatItsDispatchIsGone) {
  const torch::NoGradGuard no_grad;
  { auto big = disk_offload(net_, folder_); }
  expect_error<c10::Error>(
      [&] { static_cast<void>(net_(x_)); }, "keep the dispatched model");
}

TEST_F(DispatchModel, ReleasesEverything) {
  const torch::NoGradGuard no_grad;
  const Tensor expected = net_(x_);
  {
    auto big = disk_offload(net_, folder_);
    static_cast<void>(big(x_));
    big.dispatch().release();
  }
  EXPECT_FALSE(has_offloaded_params(*net_->middle));
  EXPECT_TRUE(net_(x_).equal(expected));
  net_->middle->weight.zero_();
}

TEST_F(DispatchModel, UsesAFolderThatHoldsTheWeightsAlready) {
  const torch::NoGradGuard no_grad;
  const Tensor expected = net_(x_);
  offload_state_dict(folder_, get_state_dict(*net_));
  const auto written = fs::last_write_time(folder_ / "head.weight.dat");
  Net empty = init_empty_weights([] { return Net(); });
  auto big = dispatch_model(
      empty, {.device_map = {{"", "disk"}}, .offload_dir = folder_});
  EXPECT_TRUE(big(x_).equal(expected));
  EXPECT_EQ(fs::last_write_time(folder_ / "head.weight.dat"), written);
}

TEST_F(DispatchModel, RefusesWhatHasNoValuesAndChangesNothing) {
  Net empty = init_empty_weights([] { return Net(); });
  expect_error<ConfigError>(
      [&] {
        static_cast<void>(dispatch_model(
            empty, {.device_map = {{"", "disk"}}, .offload_dir = folder_}));
      },
      "there are no values for first.weight, first.bias");
  EXPECT_TRUE(empty->first->weight.is_meta());
  expect_error<ConfigError>(
      [&] {
        static_cast<void>(dispatch_model(net_, {.device_map = {{"", "disk"}}}));
      },
      "pass a folder");
  expect_error<ConfigError>(
      [&] {
        static_cast<void>(dispatch_model(
            net_, {.device_map = {{"first", "disk"}}, .offload_dir = folder_}));
      },
      "head.weight");
  expect_error<ConfigError>(
      [&] {
        static_cast<void>(dispatch_model(net_, {.device_map = {{"", 7}}}));
      },
      "the device 7");
  expect_error<ConfigError>(
      [&] { static_cast<void>(dispatch_model(net_, {})); }, "device_map");
  EXPECT_TRUE(net_(x_).defined());
}

TEST_F(DispatchModel, RefusesAFolderOfAnotherModel) {
  Net other;
  offload_state_dict(
      folder_,
      {{"first.weight", torch::zeros({2, 2})},
       {"first.bias", torch::zeros({64})},
       {"middle.weight", torch::zeros({64, 64})},
       {"middle.bias", torch::zeros({64})},
       {"head.weight", torch::zeros({4, 64})},
       {"head.bias", torch::zeros({4})}});
  expect_error<ConfigError>(
      [&] {
        static_cast<void>(dispatch_model(
            net_, {.device_map = {{"", "disk"}}, .offload_dir = folder_}));
      },
      "another model");
}

TEST_F(DispatchModel, SaysThatAFileWasTruncatedAndReadsItAgain) {
  const torch::NoGradGuard no_grad;
  const Tensor expected = net_(x_);
  auto big = dispatch_model(
      net_, {.device_map = {{"", "disk"}}, .offload_dir = folder_});
  static_cast<void>(big(x_));
  big.dispatch().offload();
  const fs::path file = folder_ / "middle.weight.dat";
  const fs::path copy = directory_.path() / "copy";
  fs::copy_file(file, copy);
  fs::resize_file(file, 100);
  for (int i = 0; i < 2; ++i)
    EXPECT_THROW(static_cast<void>(big(x_)), CheckpointError);
  // Overwrites the file in place, since the model keeps it open.
  fs::copy_file(copy, file, fs::copy_options::overwrite_existing);
  EXPECT_TRUE(big(x_).equal(expected));
}

TEST_F(DispatchModel, LoadsAndDispatchesFromTheFilesOfTheCheckpoint) {
  const torch::NoGradGuard no_grad;
  const Tensor expected = net_(x_);
  const fs::path checkpoint = directory_.path() / "model.safetensors";
  save_model(*net_, directory_.path());
  Net empty = init_empty_weights([] { return Net(); });
  auto big = load_checkpoint_and_dispatch(
      empty,
      directory_.path(),
      {.device_map =
           DeviceMap{{"first", "cpu"}, {"middle", "disk"}, {"head", "disk"}}});
  EXPECT_TRUE(big(x_).equal(expected));
  EXPECT_FALSE(fs::exists(folder_));
  EXPECT_EQ(big.device_map().size(), 3U);
}

TEST_F(DispatchModel, LoadsAndDispatchesThroughAFolder) {
  const torch::NoGradGuard no_grad;
  const Tensor expected = net_(x_);
  save_model(*net_, directory_.path());
  for (int i = 0; i < 2; ++i) {
    Net empty = init_empty_weights([] { return Net(); });
    auto big = load_checkpoint_and_dispatch(
        empty,
        directory_.path(),
        {.device_map = "auto",
         .max_memory = {{"cpu", kMiddle + kFirst}},
         .offload_folder = folder_});
    EXPECT_TRUE(big(x_).equal(expected));
  }
  Net all = init_empty_weights([] { return Net(); });
  EXPECT_TRUE(
      load_checkpoint_and_dispatch(all, directory_.path())(x_).equal(expected));
  expect_error<ConfigError>(
      [&] {
        Net empty = init_empty_weights([] { return Net(); });
        static_cast<void>(load_checkpoint_and_dispatch(
            empty, directory_.path(), {.device_map = "best"}));
      },
      "balanced_low_0");
}

TEST_F(DispatchModel, ConvertsWeightsOfAnotherDtypeOnTheirWay) {
  const torch::NoGradGuard no_grad;
  WeightList half;
  for (const auto& [name, tensor] : get_state_dict(*net_))
    half.emplace_back(name, tensor.to(torch::kBFloat16));
  offload_state_dict(folder_, half);
  for (auto& parameter : net_->parameters())
    parameter.copy_(parameter.to(torch::kBFloat16));
  const Tensor expected = net_(x_);
  Net empty = init_empty_weights([] { return Net(); });
  auto big = dispatch_model(
      empty, {.device_map = {{"", "disk"}}, .offload_dir = folder_});
  EXPECT_TRUE(big(x_).equal(expected));
}

TEST_F(DispatchModel, TakesTurnsInAPipelineOfModels) {
  const torch::NoGradGuard no_grad;
  Net second;
  const Tensor expected = net_(x_);
  auto [one, first_hook] = cpu_offload_with_hook(net_);
  auto [two, second_hook] =
      cpu_offload_with_hook(second, std::nullopt, first_hook);
  EXPECT_TRUE(one(x_).equal(expected));
  static_cast<void>(two(x_));
  EXPECT_TRUE(one(x_).equal(expected));
  second_hook.offload();
  first_hook.remove();
  EXPECT_FALSE(has_offloaded_params(*net_->first));
  EXPECT_TRUE(net_(x_).equal(expected));
  UserCpuOffloadHook().offload();
}

TEST_F(DispatchModel, FetchesModulesOfAClassWithAllBelowThem) {
  const torch::NoGradGuard no_grad;
  RandomModel model(std::vector<int>{2, 0});
  model->eval();
  const Tensor x = torch::randn({3, 6});
  const Tensor expected = model(x);
  auto big =
      disk_offload(model, folder_, {.preload_module_classes = {"RandomBlock"}});
  EXPECT_TRUE(big(x).equal(expected));
  EXPECT_EQ(big.stats().num_fetches, 2);
}

TEST_F(DispatchModel, TakesValuesThatAreGivenInsteadOfTheModels) {
  const torch::NoGradGuard no_grad;
  const Tensor expected = net_(x_);
  const WeightList values = get_state_dict(*net_);
  Net empty = init_empty_weights([] { return Net(); });
  auto big = dispatch_model(
      empty,
      {.device_map = {{"first", "cpu"}, {"middle", "disk"}, {"head", "cpu"}},
       .state_dict = values,
       .offload_dir = folder_});
  EXPECT_TRUE(big(x_).equal(expected));
  Net other = init_empty_weights([] { return Net(); });
  auto offloaded = cpu_offload(other, {.state_dict = values});
  EXPECT_TRUE(offloaded(x_).equal(expected));
}

// The caller's values are read and never written to.
TEST_F(DispatchModel, LeavesGivenValuesAlone) {
  const torch::NoGradGuard no_grad;
  const Tensor expected = net_(x_);
  for (const bool offloads : {false, true}) {
    SCOPED_TRACE(offloads);
    WeightList values;
    for (const auto& [name, tensor] : get_state_dict(*net_))
      values.emplace_back(name, tensor.clone());
    Net empty = init_empty_weights([] { return Net(); });
    auto big = offloads
        ? cpu_offload(empty, {.state_dict = values})
        : dispatch_model(
              empty, {.device_map = {{"", "cpu"}}, .state_dict = values});
    align_module_device(*empty->middle, std::nullopt, [&] {
      return empty->middle->weight.zero_();
    });
    const Tensor changed = big(x_);
    EXPECT_FALSE(changed.equal(expected));
    big.dispatch().release();
    EXPECT_TRUE(empty(x_).equal(changed));
    empty->first->weight.zero_();
    std::size_t i = 0;
    for (const auto& [name, tensor] : get_state_dict(*net_))
      EXPECT_TRUE(values[i++].second.equal(tensor)) << name;
  }
}

TEST_F(DispatchModel, CountsTheSizesThatTensorsHaveOnceLoaded) {
  const torch::NoGradGuard no_grad;
  save_model(*net_, directory_.path());
  const auto map_for = [&](c10::ScalarType dtype, std::int64_t memory) {
    return load_checkpoint_and_dispatch(
               init_empty_weights([] { return Net(); }),
               directory_.path(),
               {.device_map = "sequential",
                .max_memory = {{"cpu", memory}},
                .dtype = dtype})
        .device_map();
  };
  // Room for the whole model plus the largest layer, which is kept free.
  std::int64_t num_elements = 0;
  for (const auto& parameter : net_->parameters())
    num_elements += parameter.numel();
  const std::int64_t largest =
      net_->middle->weight.numel() + net_->middle->bias.numel();
  const DeviceMap all_on_cpu{{"", "cpu"}};
  for (const auto dtype : {torch::kDouble, torch::kFloat, torch::kBFloat16}) {
    SCOPED_TRACE(c10::toString(dtype));
    const auto width = static_cast<std::int64_t>(c10::elementSize(dtype));
    EXPECT_EQ(map_for(dtype, width * num_elements), all_on_cpu);
    EXPECT_NE(map_for(dtype, width * num_elements - 1), all_on_cpu);
    EXPECT_NE(map_for(dtype, width * (num_elements - largest)), all_on_cpu);
  }
  const InferAutoDeviceMapOptions float8{
      .max_memory = {{"cpu", num_elements}},
      .special_dtypes = {
          {"first.weight", "float8_e4m3fn"},
          {"first.bias", "float8_e4m3fn"},
          {"middle.weight", "float8_e4m3fn"},
          {"middle.bias", "float8_e4m3fn"},
          {"head.weight", "float8_e4m3fn"},
          {"head.bias", "float8_e4m3fn"}}};
  EXPECT_EQ(infer_auto_device_map(*net_, float8), all_on_cpu);
}

TEST_F(DispatchModel, RenamesAndLeavesOutWhenItLoads) {
  const torch::NoGradGuard no_grad;
  const Tensor expected = net_(x_);
  save_model(*net_, directory_.path());
  fs::rename(
      directory_.path() / "model.safetensors", directory_.path() / "all");
  struct OldImpl : nn::Module {
    nn::Linear first = register_module("first", nn::Linear(8, 64));
    nn::Linear middle = register_module("center", nn::Linear(64, 64));
    nn::Linear head = register_module("head", nn::Linear(64, 4));
  };
  const auto old = std::make_shared<OldImpl>();
  for (std::size_t i = 0; i < old->parameters().size(); ++i)
    old->parameters()[i].copy_(net_->parameters()[i]);
  save_model(*old, directory_ / "old");
  const auto rename = rename_prefixes({{"center.", "middle."}});
  // Reads the disk tier from the checkpoint's own file, and from a folder.
  for (const fs::path& folder : {fs::path(), folder_}) {
    SCOPED_TRACE(folder);
    Net empty = init_empty_weights([] { return Net(); });
    auto big = load_checkpoint_and_dispatch(
        empty,
        directory_ / "old",
        {.device_map =
             DeviceMap{{"first", "cpu"}, {"middle", "disk"}, {"head", "cpu"}},
         .offload_folder = folder,
         .rename = rename,
         .strict = true});
    EXPECT_TRUE(big(x_).equal(expected));
  }
  Net net;
  const Tensor bias = net->head->bias.clone();
  const auto left = load_checkpoint_and_dispatch(
      net,
      directory_ / "old",
      {.map_weights = false,
       .skip = {"head.bias", "center.*"},
       .allow_missing = {"middle.*"},
       .strict = true});
  EXPECT_TRUE(net->head->bias.equal(bias));
  EXPECT_TRUE(net->head->weight.equal(net_->head->weight));
  Net half;
  const auto kept = load_checkpoint_and_dispatch(
      half,
      directory_ / "old",
      {.dtype = torch::kHalf,
       .keep_in_fp32_modules = {"head"},
       .rename = rename});
  EXPECT_EQ(half->head->weight.scalar_type(), torch::kFloat);
  EXPECT_EQ(half->middle->weight.scalar_type(), torch::kHalf);
}

// A skipped tensor keeps the module's values, which the checkpoint's file does
// not hold.
TEST_F(DispatchModel, LeavesOutNothingThatItReadsInPlace) {
  save_model(*net_, directory_ / "saved");
  const DeviceMap map{{"first", "cpu"}, {"middle", "disk"}, {"head", "cpu"}};
  Net net;
  expect_error<ConfigError>(
      [&] {
        static_cast<void>(load_checkpoint_and_dispatch(
            net,
            directory_ / "saved",
            {.device_map = map, .skip = {"middle.bias"}}));
      },
      "middle.bias");
  const Tensor bias = net->middle->bias.clone();
  const Tensor weight = net_->middle->weight;
  auto big = load_checkpoint_and_dispatch(
      net,
      directory_ / "saved",
      {.device_map = map, .offload_folder = folder_, .skip = {"middle.bias"}});
  align_module_device(*net->middle, torch::kCPU, [&] {
    EXPECT_TRUE(net->middle->bias.equal(bias));
    EXPECT_TRUE(net->middle->weight.equal(weight));
    return 0;
  });
}

TEST_F(DispatchModel, ShowsABarOfWhatIsRead) {
  save_model(*net_, directory_.path());
  const auto read = [&](LoadAndDispatchOptions options) {
    ::testing::internal::CaptureStderr();
    Net empty = init_empty_weights([] { return Net(); });
    const auto big = load_checkpoint_and_dispatch(
        empty, directory_.path(), std::move(options));
    return ::testing::internal::GetCapturedStderr();
  };
  const ProgressOptions bar{
      .description = "reading weights", .line_interval_seconds = 0};
  const DeviceMap on_cpu{{"", "cpu"}};
  EXPECT_THAT(
      read({.device_map = on_cpu, .map_weights = false, .progress = bar}),
      ::testing::HasSubstr("reading weights"));
  EXPECT_EQ(read({.device_map = on_cpu, .map_weights = false}), "");
}

TEST_F(DispatchModel, SaysThatTheDiskHasNoRoomBeforeItIsFilled) {
  const Tensor huge = torch::zeros({1}).expand({std::int64_t{1} << 52});
  expect_error<ConfigError>(
      [&] { offload_state_dict(folder_, {{"huge", huge}}); },
      "keep more of the model in memory");
  EXPECT_FALSE(fs::exists(folder_));
  const MaxMemory limits = get_max_memory({}, folder_ / "of" / "a" / "model");
  EXPECT_TRUE(limits.back().first.is_disk());
  EXPECT_GT(limits.back().second.bytes(), 0);
  EXPECT_EQ(
      get_max_memory({{"cpu", 5}, {"disk", 7}}, folder_),
      (MaxMemory{{"cpu", 5}, {"disk", 7}}));
}

TEST_F(DispatchModel, NeedsAFolderIfOnlyRank0HasTheCheckpoint) {
  save_model(*net_, directory_.path());
  run_on_ranks(2, [&](const WorldOptions& options) {
    World world(options);
    const torch::NoGradGuard no_grad;
    const LoadAndDispatchOptions loading{
        .device_map =
            DeviceMap{{"first", "cpu"}, {"middle", "disk"}, {"head", "cpu"}},
        .broadcast_from_rank0 = true,
        .group = world.group()};
    // Only rank 0 has the files.
    const fs::path checkpoint =
        world.rank() == 0 ? directory_.path() : directory_ / "nowhere";
    expect_error<ConfigError>(
        [&] {
          static_cast<void>(load_checkpoint_and_dispatch(
              init_empty_weights([] { return Net(); }), checkpoint, loading));
        },
        "give each rank an offload_folder of its own");
    LoadAndDispatchOptions own = loading;
    own.offload_folder =
        directory_ / ("offload" + std::to_string(world.rank()));
    auto big = load_checkpoint_and_dispatch(
        init_empty_weights([] { return Net(); }), checkpoint, own);
    EXPECT_TRUE(big(x_).equal(net_(x_)));
  });
}

TEST_F(DispatchModel, ReadsWhatAnIndexNames) {
  const torch::NoGradGuard no_grad;
  const Tensor expected = net_(x_);
  const fs::path file = directory_.path() / "model.safetensors";
  save_model(*net_, directory_.path());
  OffloadIndex index;
  for (const auto& [name, tensor] : get_state_dict(*net_))
    index.set(name, {.safetensors_file = file});
  Net empty = init_empty_weights([] { return Net(); });
  auto big = dispatch_model(
      empty, {.device_map = {{"", "disk"}}, .offload_index = index});
  EXPECT_TRUE(big(x_).equal(expected));
  index.set("head.bias", {.safetensors_file = file, .weight_name = "nowhere"});
  Net other = init_empty_weights([] { return Net(); });
  expect_error<CheckpointError>(
      [&] {
        static_cast<void>(dispatch_model(
            other, {.device_map = {{"", "disk"}}, .offload_index = index}));
      },
      "nowhere");
}

TEST_F(DispatchModel, OffloadsBuffersIfAsked) {
  for (const bool offload_buffers : {false, true}) {
    SCOPED_TRACE(offload_buffers);
    nn::BatchNorm1d norm(nn::BatchNorm1dOptions(8).affine(false));
    norm->eval();
    auto big = dispatch_model(
        norm,
        {.device_map = {{"", "disk"}},
         .offload_dir = folder_,
         .offload_buffers = offload_buffers});
    EXPECT_EQ(has_offloaded_params(*norm), offload_buffers);
    nn::BatchNorm1d other(nn::BatchNorm1dOptions(8).affine(false));
    auto on_host = cpu_offload(other, {.offload_buffers = offload_buffers});
    EXPECT_EQ(has_offloaded_params(*other), offload_buffers);
  }
}

TEST_F(DispatchModel, OffloadsASinglePlaceIfForced) {
  const torch::NoGradGuard no_grad;
  const Tensor expected = net_(x_);
  {
    auto big = dispatch_model(net_, {.device_map = {{"", "cpu"}}});
    EXPECT_FALSE(has_offloaded_params(*net_->first));
  }
  auto big =
      dispatch_model(net_, {.device_map = {{"", "cpu"}}, .force_hooks = true});
  EXPECT_TRUE(has_offloaded_params(*net_->first));
  EXPECT_TRUE(big(x_).equal(expected));
  EXPECT_TRUE(big.dispatch().main_device().is_cpu());
}

TEST_F(DispatchModel, HandsItsOptionsToTheLoader) {
  const torch::NoGradGuard no_grad;
  save_model(*net_, directory_.path());
  const auto load = [&](LoadAndDispatchOptions options) {
    Net empty = init_empty_weights([] { return Net(); });
    auto big = load_checkpoint_and_dispatch(
        empty, directory_.path(), std::move(options));
    return empty;
  };
  const DeviceMap on_cpu{{"", "cpu"}};
  EXPECT_EQ(
      load({.device_map = on_cpu, .dtype = torch::kHalf})
          ->first->weight.scalar_type(),
      torch::kHalf);
  EXPECT_EQ(
      load({.device_map = on_cpu, .offload_state_dict = true})
          ->first->weight.scalar_type(),
      torch::kFloat);
  expect_error<ConfigError>(
      [&] { load({.device_map = on_cpu, .full_state_dict = false}); },
      "full_state_dict");
  expect_error<ConfigError>(
      [&] { load({.device_map = on_cpu, .broadcast_from_rank0 = true}); },
      "group");
  struct MoreImpl : nn::Module {
    nn::Linear first = register_module("first", nn::Linear(8, 64));
  };
  const auto more = std::make_shared<MoreImpl>();
  expect_error<CheckpointError>(
      [&] {
        static_cast<void>(load_checkpoint_and_dispatch(
            more, directory_.path(), {.device_map = on_cpu, .strict = true}));
      },
      "middle.weight");
}

TEST_F(DispatchModel, HandsItsOptionsToTheDispatcher) {
  const torch::NoGradGuard no_grad;
  save_model(*net_, directory_.path());
  Net empty = init_empty_weights([] { return Net(); });
  auto big = load_checkpoint_and_dispatch(
      empty,
      directory_.path(),
      {.device_map = DeviceMap{{"", "cpu"}},
       .offload_buffers = true,
       .preload_module_classes = {"Net"},
       .force_hooks = true,
       .main_device = "cpu",
       .prefetch_memory = "1GB"});
  EXPECT_TRUE(has_offloaded_params(*empty->first));
  EXPECT_TRUE(big(x_).equal(net_(x_)));
  const auto map = infer_auto_device_map(
      *net_, "sequential", {.max_memory = {{"cpu", kMiddle + kFirst}}});
  Net split = init_empty_weights([] { return Net(); });
  EXPECT_EQ(
      load_checkpoint_and_dispatch(
          split,
          directory_.path(),
          {.device_map = "sequential",
           .max_memory = {{"cpu", kMiddle + kFirst}},
           .no_split_module_classes = {"Linear"}})
          .device_map(),
      map);
}

TEST_F(DispatchModel, HasAsManyDispatchesAsOneLikes) {
  const torch::NoGradGuard no_grad;
  const Tensor expected = net_(x_);
  for (int i = 0; i < 20; ++i) {
    auto big = disk_offload(net_, folder_);
    EXPECT_TRUE(big(x_).equal(expected));
    big.dispatch().release();
  }
}

// A model whose buffers training changes.
struct NormsImpl : nn::Module {
  Tensor forward(const Tensor& x) {
    return instance(second(first(x)).view({1, 3, -1})).flatten();
  }
  nn::BatchNorm1d first = register_module("first", nn::BatchNorm1d(4));
  nn::BatchNorm1d second = register_module(
      "second",
      nn::BatchNorm1d(nn::BatchNorm1dOptions(4).momentum(std::nullopt)));
  nn::InstanceNorm1d instance = register_module(
      "instance",
      nn::InstanceNorm1d(
          nn::InstanceNorm1dOptions(3).track_running_stats(true)));
};
TORCH_MODULE(Norms);

TEST_F(DispatchModel, KeepsBuffersThatForwardsChange) {
  const Tensor x = torch::randn({6, 4});
  for (const std::string kind : {"disk", "host", "state dict"}) {
    SCOPED_TRACE(kind);
    Norms plain;
    Norms kept;
    WeightList state_dict;
    for (const auto& item : kept->named_buffers())
      state_dict.emplace_back(item.key(), item.value().clone());
    WeightList before;
    for (const auto& [name, value] : state_dict)
      before.emplace_back(name, value.clone());
    for (Tensor& each : kept->parameters()) each.set_requires_grad(false);
    const TemporaryDirectory folder;
    Dispatch dispatch = kind == "disk"
        ? disk_offload_module(*kept, folder.path(), {.offload_buffers = true})
        : cpu_offload_module(
              *kept,
              {.offload_buffers = true,
               .state_dict = kind == "host" ? WeightList() : state_dict});
    for (int i = 0; i < 3; ++i) {
      plain->train();
      kept->train();
      const Tensor input = (x * (i + 1)).requires_grad_();
      const Tensor want = plain(input);
      const Tensor got = kept(input);
      EXPECT_TRUE(torch::allclose(got, want));
      EXPECT_TRUE(torch::allclose(
          torch::autograd::grad({got.square().sum()}, {input})[0],
          torch::autograd::grad({want.square().sum()}, {input})[0],
          1e-4,
          1e-4));
      plain->eval();
      kept->eval();
      EXPECT_TRUE(torch::allclose(kept(x), plain(x)));
      dispatch.offload();
    }
    const auto folder_values = kind == "disk"
        ? OffloadedWeightsLoader({.save_folder = folder.path()})
              .at("first.running_mean")
        : before.front().second;
    EXPECT_TRUE(folder_values.equal(torch::zeros({4})));
    for (std::size_t i = 0; i < before.size(); ++i)
      EXPECT_TRUE(state_dict[i].second.equal(before[i].second));
    dispatch.release();
    const auto wanted = plain->named_buffers();
    for (const auto& item : kept->named_buffers()) {
      EXPECT_TRUE(torch::allclose(
          item.value().to(torch::kDouble),
          wanted[item.key()].to(torch::kDouble)))
          << item.key();
    }
  }
}

TEST_F(DispatchModel, NamesTheWeightThatAnOperatorWouldChange) {
  auto big = dispatch_model(
      net_, {.device_map = {{"", "disk"}}, .offload_dir = folder_});
  const torch::NoGradGuard no_grad;
  expect_error<Error>(
      [&] { net_->head->bias.add_(1); },
      "aten::add_ would change \"head.bias\", which is offloaded, and the "
      "change would be lost: change it inside align_module_device()");
}

}  // namespace accelerate::dispatch_test
