// Models whose Linear layers are quantized while their modules stay unchanged.
#include <accelerate/quantized_model.h>

#include <filesystem>

#include <ATen/autocast_mode.h>
#include <torch/nn/modules.h>

#include <accelerate/accelerator.h>
#include <accelerate/error.h>
#include <accelerate/save.h>

#include "base/files/files.h"
#include "big_model/model/module_tensor.h"
#include "support/expect_error.h"
#include "support/has_memory.h"
#include "support/temporary_directory.h"

namespace accelerate {
namespace quantize_model_test {

using at::Tensor;
using testing::expect_error;
using testing::TemporaryDirectory;
namespace nn = torch::nn;

constexpr std::int64_t kWidth = 64;

struct BlockImpl : nn::Module {
  BlockImpl() {
    register_module("norm", norm);
    register_module("up", up);
    register_module("down", down);
  }
  Tensor forward(const Tensor& x) { return x + down(torch::gelu(up(norm(x)))); }
  nn::LayerNorm norm{nn::LayerNormOptions({kWidth})};
  nn::Linear up{kWidth, 2 * kWidth};
  nn::Linear down{nn::LinearOptions(2 * kWidth, kWidth).bias(false)};
};
TORCH_MODULE(Block);

struct NetImpl : nn::Module {
  NetImpl() {
    register_module("blocks", blocks);
    for (int i = 0; i < 2; ++i) blocks->push_back(Block());
    register_module("head", head);
  }
  Tensor forward(Tensor x) {
    for (const auto& block : *blocks) x = block->as<BlockImpl>()->forward(x);
    return head(x);
  }
  nn::ModuleList blocks;
  nn::Linear head{kWidth, 7};
};
TORCH_MODULE(Net);

Net net_with(double seed) {
  Net net;
  const torch::NoGradGuard no_grad;
  double number = seed;
  for (Tensor& parameter : net->parameters()) {
    parameter.copy_(
        torch::sin(torch::arange(parameter.numel()) * 0.7 + number++)
            .mul(0.2)
            .view(parameter.sizes()));
  }
  return net;
}

Net empty_net() {
  Net net;
  for (const Tensor& tensor : net->parameters()) {
    detail::replace_in_place(
        tensor, torch::empty(tensor.sizes(), torch::kMeta));
  }
  return net;
}

Tensor some_input() {
  return torch::sin(torch::arange(3 * kWidth) * 0.3).view({3, kWidth});
}

const std::vector<std::string>& quantized_names() {
  static const std::vector<std::string> names{
      "blocks.0.up", "blocks.0.down", "blocks.1.up", "blocks.1.down"};
  return names;
}

/// A copy of the net with the dequantized weights of `quantized`.
Net dequantized(const Net& net, const QuantizedModel& quantized) {
  Net other = net_with(0);
  const torch::NoGradGuard no_grad;
  const auto from = net->named_parameters();
  for (auto& item : other->named_parameters()) {
    const std::string& name = item.key();
    const auto layer = name.substr(0, name.rfind('.'));
    const auto names = quantized.module_names();
    const bool is_quantized = name.ends_with(".weight") &&
        std::find(names.begin(), names.end(), layer) != names.end();
    item.value().copy_(
        is_quantized ? quantized.weight(layer).dequantize() : from[name]);
  }
  return other;
}

double difference(const Tensor& a, const Tensor& b) {
  return (a - b).abs().max().item<double>();
}

QuantizationOptions nf4() {
  return {
      .load_in_4bit = true,
      .bnb_4bit_quant_type = "nf4",
      .bnb_4bit_use_double_quant = true,
      .torch_dtype = "fp32"};
}
QuantizationOptions int8() {
  return {.load_in_8bit = true, .torch_dtype = "fp32"};
}

TEST(QuantizedModels, UnmodifiedModulesMultiplyByTheCodes) {
  for (const auto& config : {nf4(), int8()}) {
    Net net = net_with(1);
    const Tensor before = net(some_input());
    const QuantizedModel quantized = load_and_quantize_model(*net, config);
    EXPECT_EQ(quantized.module_names(), quantized_names());
    const Tensor found = net(some_input());
    EXPECT_LE(
        difference(found, dequantized(net, quantized)(some_input())), 1e-5);
    EXPECT_LE(difference(found, before), config.load_in_4bit ? 1.5 : 0.1);
    EXPECT_GT(difference(found, before), 0);
  }
}

TEST(QuantizedModels, WeightsTakeTheMemoryOfTheirCodes) {
  Net net = net_with(1);
  const QuantizedModel quantized = load_and_quantize_model(*net, nf4());
  std::int64_t expected = 0;
  for (const auto& item : net->named_parameters()) {
    if (!item.key().starts_with("blocks") || item.key().ends_with("bias") ||
        item.key().find("norm") != std::string::npos) {
      expected += static_cast<std::int64_t>(item.value().nbytes());
    }
  }
  for (const auto& name : quantized.module_names())
    expected += quantized.weight(name).num_bytes();
  EXPECT_EQ(quantized.get_memory_footprint(), expected);
  const Tensor& weight = net->blocks->at<BlockImpl>(0).up->weight;
  EXPECT_FALSE(testing::has_memory(weight));
  EXPECT_EQ(weight.sizes(), at::IntArrayRef({2 * kWidth, kWidth}));
  EXPECT_FALSE(weight.requires_grad());
}

TEST(QuantizedModels, OtherOperatorsGetTheValues) {
  Net net = net_with(1);
  const QuantizedModel quantized = load_and_quantize_model(*net, nf4());
  const Tensor& weight = net->blocks->at<BlockImpl>(1).down->weight;
  const Tensor values = quantized.weight("blocks.1.down").dequantize();
  EXPECT_TRUE(at::equal(weight.clone(), values));
  EXPECT_TRUE(at::equal(weight[3] + 1, values[3] + 1));
  EXPECT_TRUE(at::equal(at::cat({weight, weight}), at::cat({values, values})));
  const Tensor x = torch::ones({2, weight.size(0)});
  EXPECT_LE(difference(at::mm(x, weight), at::mm(x, values)), 1e-4);
}

TEST(QuantizedModels, WeightsCannotBeChanged) {
  Net net = net_with(1);
  const QuantizedModel quantized = load_and_quantize_model(*net, nf4());
  expect_error<ConfigError>(
      [&] {
        const torch::NoGradGuard no_grad;
        net->blocks->at<BlockImpl>(0).up->weight.mul_(2);
      },
      "cannot change the weight of \"blocks.0.up\"");
  expect_error<c10::Error>(
      [&] {
        static_cast<void>(
            net->blocks->at<BlockImpl>(0).up->weight.data_ptr<float>());
      },
      "the weight of \"blocks.0.up\" is quantised");
}

TEST(QuantizedModels, WhatIsAroundQuantisedLayersIsTrained) {
  Net net = net_with(1);
  const QuantizedModel quantized = load_and_quantize_model(*net, nf4());
  Net same = dequantized(net, quantized);
  const auto loss = [](Net& model) {
    return model(some_input()).pow(2).mean();
  };
  loss(net).backward();
  loss(same).backward();
  auto expected = same->named_parameters();
  int num_compared = 0;
  for (const auto& item : net->named_parameters()) {
    if (!item.value().requires_grad()) continue;
    ++num_compared;
    EXPECT_LE(
        difference(item.value().grad(), expected[item.key()].grad()), 1e-5)
        << item.key();
  }
  EXPECT_EQ(num_compared, 8);  // norms, biases and the head
}

TEST(QuantizedModels, AutocastDecidesTheDtypeOfProducts) {
  Net net = net_with(1);
  const QuantizedModel quantized = load_and_quantize_model(*net, nf4());
  const Tensor x = some_input();
  at::autocast::set_autocast_enabled(at::kCPU, true);
  at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
  const Tensor found = net->blocks->at<BlockImpl>(0).up(x);
  at::autocast::set_autocast_enabled(at::kCPU, false);
  EXPECT_EQ(found.scalar_type(), at::kBFloat16);
}

TEST(QuantizedModels, FilesAreQuantisedWhileTheyAreLoaded) {
  for (const auto& config : {nf4(), int8()}) {
    const TemporaryDirectory directory;
    Net whole = net_with(1);
    save_model(*whole, directory.path());
    Net net = empty_net();
    const QuantizedModel loaded = load_and_quantize_model(
        *net, config, {.weights_location = directory.path()});
    const QuantizedModel in_place = load_and_quantize_model(*whole, config);
    EXPECT_TRUE(at::equal(net(some_input()), whole(some_input())));
    EXPECT_EQ(loaded.get_memory_footprint(), in_place.get_memory_footprint());
  }
}

TEST(QuantizedModels, SavedModelsAreLoadedWithTheSameCodes) {
  for (const auto& config : {nf4(), int8()}) {
    const TemporaryDirectory directory;
    Net net = net_with(1);
    const QuantizedModel quantized = load_and_quantize_model(*net, config);
    quantized.save_model(directory.path());
    Net other = empty_net();
    // The files record how the weights are quantized.
    const QuantizedModel loaded = load_and_quantize_model(
        *other, config, {.weights_location = directory.path()});
    EXPECT_TRUE(at::equal(other(some_input()), net(some_input())));
    const auto saved = quantized.state_dict();
    const auto found = loaded.state_dict();
    ASSERT_EQ(found.size(), saved.size());
    for (std::size_t i = 0; i < saved.size(); ++i) {
      EXPECT_EQ(found[i].first, saved[i].first);
      EXPECT_TRUE(at::equal(found[i].second, saved[i].second))
          << saved[i].first;
    }
  }
}

TEST(QuantizedModels, TheLastSaveIsLoadedWhateverFormatTheOneBeforeHad) {
  for (const bool is_safe : {false, true}) {
    const TemporaryDirectory directory;
    Net old = net_with(1);
    load_and_quantize_model(*old, int8())
        .save_model(directory.path(), {.safe_serialization = is_safe});
    Net young = net_with(2);
    const QuantizedModel quantized = load_and_quantize_model(*young, int8());
    quantized.save_model(directory.path(), {.safe_serialization = !is_safe});
    EXPECT_EQ(
        std::filesystem::exists(directory / "model.safetensors"), !is_safe);
    EXPECT_EQ(
        std::filesystem::exists(directory / "pytorch_model.bin"), is_safe);
    Net other = empty_net();
    const QuantizedModel loaded = load_and_quantize_model(
        *other, int8(), {.weights_location = directory.path()});
    EXPECT_TRUE(at::equal(other(some_input()), young(some_input())));
  }
}

TEST(QuantizedModels, StateDictsHaveTheNamesOfBitsandbytes) {
  const auto names_of = [](const QuantizationOptions& config) {
    Net net = net_with(1);
    const QuantizedModel quantized = load_and_quantize_model(*net, config);
    std::vector<std::string> names;
    for (const auto& [name, tensor] : quantized.state_dict()) {
      if (name.starts_with("blocks.0.up")) names.push_back(name);
    }
    return names;
  };
  EXPECT_THAT(
      names_of(nf4()),
      ::testing::ElementsAre(
          "blocks.0.up.weight",
          "blocks.0.up.bias",
          "blocks.0.up.weight.absmax",
          "blocks.0.up.weight.quant_map",
          "blocks.0.up.weight.nested_absmax",
          "blocks.0.up.weight.nested_quant_map",
          "blocks.0.up.weight.quant_state.bitsandbytes__nf4"));
  EXPECT_THAT(
      names_of(int8()),
      ::testing::ElementsAre(
          "blocks.0.up.weight",
          "blocks.0.up.bias",
          "blocks.0.up.SCB",
          "blocks.0.up.weight_format"));
}

TEST(QuantizedModels, QuantisedWeightsOnTheDiskTravelAsCodes) {
  const TemporaryDirectory directory;
  const TemporaryDirectory folder;
  Net whole = net_with(1);
  save_model(*whole, directory.path());
  Net net = empty_net();
  const QuantizedModel quantized = load_and_quantize_model(
      *net,
      nf4(),
      {.weights_location = directory.path(),
       .device_map =
           DeviceMap{
               {"blocks.0", "cpu"},
               {"blocks.1.norm", "cpu"},
               {"blocks.1.up.bias", "cpu"},
               {"blocks.1.up.weight", "disk"},
               {"blocks.1.down", "disk"},
               {"head", "cpu"}},
       .offload_folder = folder.path()});
  for (const char* name :
       {"blocks.1.down.weight.dat", "blocks.1.up.weight.absmax.dat"}) {
    EXPECT_TRUE(std::filesystem::exists(folder.path() / name)) << name;
  }
  EXPECT_FALSE(
      std::filesystem::exists(folder.path() / "blocks.0.down.weight.dat"));
  const QuantizedModel in_place = load_and_quantize_model(*whole, nf4());
  EXPECT_TRUE(at::equal(net(some_input()), whole(some_input())));
}

TEST(QuantizedModels, DevicesAreFilledByTheSizesOfCodes) {
  const Net net = empty_net();
  const DeviceMap map = infer_quantized_device_map(
      *net, nf4(), {.max_memory = {{"cpu", "40KB"}, {"disk", "1GB"}}});
  const DeviceMap plain = infer_quantized_device_map(
      *net,
      {.load_in_8bit = true, .torch_dtype = "fp32"},
      {.max_memory = {{"cpu", "25KB"}, {"disk", "1GB"}}});
  EXPECT_TRUE(map.device_of("blocks.1.down")->is_cpu()) << map.explain();
  EXPECT_TRUE(plain.device_of("blocks.1.down")->is_disk()) << plain.explain();
}

TEST(QuantizedModels, SkippedModulesStayAsTheyAre) {
  Net net = net_with(1);
  QuantizationOptions config = nf4();
  config.skip_modules = {"up", "head"};
  config.keep_in_fp32_modules = {"blocks.1"};
  const QuantizedModel quantized = load_and_quantize_model(*net, config);
  EXPECT_THAT(
      quantized.module_names(), ::testing::ElementsAre("blocks.0.down"));
}

TEST(QuantizedModels, LoadedWeightsHaveTheDtypeOfTheConfiguration) {
  const TemporaryDirectory directory;
  save_model(*net_with(1), directory.path());
  Net net = empty_net();
  const QuantizedModel quantized = load_and_quantize_model(
      *net,
      {.load_in_4bit = true,
       .bnb_4bit_compute_dtype = "bf16",
       .keep_in_fp32_modules = std::vector<std::string>{}},
      {.weights_location = directory.path()});
  EXPECT_EQ(net->head->weight.scalar_type(), at::kBFloat16);
  const auto& block = net->blocks->at<BlockImpl>(0);
  EXPECT_EQ(block.up->weight.scalar_type(), at::kBFloat16);
  EXPECT_EQ(quantized.weight("blocks.0.up").dtype(), at::kBFloat16);
}

TEST(QuantizedModels, BlocksHaveTheSizeOfTheConfiguration) {
  Net net = net_with(1);
  QuantizationOptions config = nf4();
  config.bnb_4bit_blocksize = 100;
  const QuantizedModel quantized = load_and_quantize_model(*net, config);
  EXPECT_EQ(quantized.weight("blocks.0.up").block_size(), 100);
  EXPECT_LE(
      difference(net(some_input()), dequantized(net, quantized)(some_input())),
      1e-5);
}

TEST(QuantizedModels, InputsAreQuantisedOnRequest) {
  const auto output_with = [](bool quantizes_inputs, double threshold) {
    Net net = net_with(1);
    QuantizationOptions config = int8();
    config.llm_int8_quantize_inputs = quantizes_inputs;
    config.llm_int8_threshold = threshold;
    const QuantizedModel quantized = load_and_quantize_model(*net, config);
    return net->blocks->at<BlockImpl>(0).up(some_input() * 10);
  };
  const Tensor exact = output_with(false, 6);
  // All columns reach the smallest threshold.
  EXPECT_LE(difference(output_with(true, 1e-9), exact), 1e-4);
  EXPECT_GT(difference(output_with(true, 0), exact), 1e-3);
}

TEST(QuantizedModels, OtherTensorsTakeTheOptionsOfLoading) {
  const TemporaryDirectory directory;
  Net whole = net_with(1);
  torch::nn::ModuleList renamed;
  renamed->push_back(whole);
  save_model(*renamed, directory.path());
  Net net = empty_net();
  const QuantizedModel quantized = load_and_quantize_model(
      *net,
      int8(),
      {.weights_location = directory.path(),
       .offload_state_dict = true,
       .rename = rename_prefixes({{"0.", ""}})});
  const QuantizedModel in_place = load_and_quantize_model(*whole, int8());
  EXPECT_TRUE(at::equal(net(some_input()), whole(some_input())));
}

TEST(QuantizedModels, ErrorsLeaveTheModelAsItWas) {
  const TemporaryDirectory directory;
  Net smaller = net_with(1);
  smaller->blocks->at<BlockImpl>(0).up =
      smaller->blocks->at<BlockImpl>(0).replace_module(
          "up", nn::Linear(kWidth, kWidth));
  save_model(*smaller, directory.path());
  Net net = empty_net();
  expect_error<CheckpointError>(
      [&] {
        static_cast<void>(load_and_quantize_model(
            *net, nf4(), {.weights_location = directory.path()}));
      },
      "blocks.0.up.weight has shape [64, 64] in the checkpoint and [128, 64]");
  EXPECT_TRUE(net->head->weight.is_meta());
  expect_error<ConfigError>(
      [&] { static_cast<void>(load_and_quantize_model(*net, nf4())); },
      "has no values: set weights_location");
  Net bad = net_with(1);
  {
    const torch::NoGradGuard no_grad;
    bad->blocks->at<BlockImpl>(1).down->weight[0][0] = INFINITY;
  }
  const Tensor before = bad->blocks->at<BlockImpl>(0).up->weight.clone();
  expect_error<ConfigError>(
      [&] { static_cast<void>(load_and_quantize_model(*bad, nf4())); },
      "blocks.1.down.weight must be finite to be quantised, but has infinite "
      "or NaN values");
  EXPECT_TRUE(at::equal(bad->blocks->at<BlockImpl>(0).up->weight, before));
}

TEST(QuantizedModels, QuantisingTwiceIsRefused) {
  Net net = net_with(1);
  const QuantizedModel quantized = load_and_quantize_model(*net, nf4());
  expect_error<ConfigError>(
      [&] { static_cast<void>(load_and_quantize_model(*net, nf4())); },
      "is already offloaded, sharded or quantised");
}

TEST(QuantizedModels, WeightsWithoutTheirModelSayWhatIsMissing) {
  Net net = net_with(1);
  { const QuantizedModel quantized = load_and_quantize_model(*net, nf4()); }
  expect_error<c10::Error>(
      [&] { static_cast<void>(net(some_input())); }, "keep the QuantizedModel");
}

TEST(QuantizedModels, ConfigurationsAreChecked) {
  const auto refuses = [](const QuantizationOptions& config,
                          const std::string& phrase) {
    expect_error<ConfigError>(
        [&] { static_cast<void>(config.check()); }, phrase);
  };
  refuses({}, "both are false");
  refuses({.load_in_8bit = true, .load_in_4bit = true}, "both are true");
  refuses({.load_in_4bit = true, .bnb_4bit_quant_type = "nf3"}, "fp4 or nf4");
  refuses(
      {.load_in_4bit = true, .bnb_4bit_compute_dtype = "half"},
      "bnb_4bit_compute_dtype must be fp32, fp16 or bf16");
  refuses(
      {.load_in_4bit = true, .torch_dtype = "float32"},
      "torch_dtype must be fp32, fp16 or bf16");
  refuses({.load_in_4bit = true, .bnb_4bit_blocksize = 0}, "at least 1");
  refuses(
      {.load_in_8bit = true, .llm_int8_threshold = NAN},
      "llm_int8_threshold must be finite");
  refuses(
      {.load_in_4bit = true, .llm_int8_quantize_inputs = true},
      "needs load_in_8bit");
  EXPECT_THAT(
      (QuantizationOptions{.llm_int8_threshold = 5, .load_in_4bit = true})
          .check(),
      ::testing::ElementsAre(
          "llm_int8_threshold can only be used for model loaded in 8bit"));
}

// The same files, whoever writes them.
TEST(QuantizedModels, SavesItsCodesHoweverItIsSaved) {
  for (const bool safe : {true, false}) {
    const testing::TemporaryDirectory directory;
    Net net = net_with(1);
    const QuantizationOptions config{
        .load_in_4bit = true,
        .bnb_4bit_use_double_quant = true,
        .bnb_4bit_compute_dtype = "fp32"};
    const QuantizedModel quantized = load_and_quantize_model(*net, config);
    const SaveModelOptions options{.safe_serialization = safe};
    quantized.save_model(directory / "own", options);
    save_model(*net, directory / "free", options);
    Accelerator accelerator({.cpu = true});
    auto prepared = accelerator.prepare(net);
    accelerator.save_model(prepared, directory / "prepared", options);
    for (const auto& entry :
         std::filesystem::directory_iterator(directory / "own")) {
      const std::string name = entry.path().filename();
      const std::string want = detail::read_file(entry.path());
      EXPECT_EQ(detail::read_file(directory / "free" / name), want) << name;
      EXPECT_EQ(detail::read_file(directory / "prepared" / name), want) << name;
    }
    Net again = empty_net();
    const QuantizedModel loaded = load_and_quantize_model(
        *again, config, {.weights_location = directory / "prepared"});
    EXPECT_TRUE(again->forward(some_input()).equal(net->forward(some_input())));
  }
}

TEST(QuantizedModels, SavesValuesWhereTensorsAreSaved) {
  const testing::TemporaryDirectory directory;
  Net net = net_with(1);
  const QuantizedModel quantized =
      load_and_quantize_model(*net, {.load_in_8bit = true});
  Accelerator accelerator({.cpu = true});
  auto prepared = accelerator.prepare(net);
  const WeightList weights = accelerator.get_state_dict(prepared);
  for (const bool safe : {true, false}) {
    const auto file = directory / (safe ? "a.safetensors" : "a.bin");
    accelerator.save(weights, file, safe);
    const auto saved = load_state_dict(file);
    for (const std::string& name : quantized.module_names()) {
      const QuantizedWeight& weight = quantized.weight(name);
      EXPECT_TRUE(saved.at(name + ".weight")
                      .equal(weight.dequantize(
                          saved.at(name + ".weight").scalar_type())))
          << name;
    }
  }
}

}  // namespace quantize_model_test
}  // namespace accelerate
