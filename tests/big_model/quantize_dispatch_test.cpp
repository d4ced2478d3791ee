// Quantized models whose codes are in host memory or on disk between forwards.
#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>

#include <torch/nn/modules.h>

#include <accelerate/big_model.h>
#include <accelerate/empty_weights.h>
#include <accelerate/error.h>
#include <accelerate/module_tensors.h>
#include <accelerate/quantized_model.h>
#include <accelerate/weights.h>

#include "big_model/model/module_tensor.h"
#include "big_model/model/offload_keeper.h"
#include "support/expect_error.h"
#include "support/file_size_limit.h"
#include "support/pretend_device.h"
#include "support/temporary_directory.h"

namespace accelerate::quantize_dispatch_test {

namespace fs = std::filesystem;
namespace nn = torch::nn;
using testing::expect_error;
using testing::TemporaryDirectory;
using torch::Tensor;

struct NetImpl : nn::Module {
  Tensor forward(const Tensor& x) {
    return head(torch::relu(last(torch::relu(middle(norm(first(x)))))));
  }
  nn::Linear first = register_module("first", nn::Linear(32, 64));
  nn::LayerNorm norm =
      register_module("norm", nn::LayerNorm(nn::LayerNormOptions({64})));
  nn::Linear middle = register_module("middle", nn::Linear(64, 64));
  nn::Linear last = register_module(
      "last",
      nn::Linear(nn::LinearOptions(64, 32).bias(false)));
  nn::Linear head = register_module("head", nn::Linear(32, 4));
};
TORCH_MODULE(Net);

struct NetWithTailImpl : nn::Module {
  Net net = register_module("net", Net());
  nn::Linear tail = register_module("tail", nn::Linear(4, 4));
};
TORCH_MODULE(NetWithTail);

const QuantizationOptions kNf4{
    .load_in_4bit = true,
    .bnb_4bit_quant_type = "nf4",
    .bnb_4bit_use_double_quant = true,
    .torch_dtype = "fp32"};
const QuantizationOptions kInt8{.load_in_8bit = true, .torch_dtype = "fp32"};

// Bytes fetched for a 64 x 64 layer in int8: codes, scales and the bias.
constexpr std::int64_t kMiddleInt8 = 64 * 64 + 64 * 4 + 64 * 4;

Net empty_net() {
  Net net;
  for (const Tensor& tensor : net->parameters())
    detail::replace_in_place(
        tensor, torch::empty(tensor.sizes(), torch::kMeta));
  return net;
}

// Inputs are quantised on devices as well, not silently left in full precision.
TEST(Int8Inputs, GiveTheSameProductsOnADevice) {
  torch::manual_seed(3);
  Tensor x = torch::randn({5, 96});
  x.select(1, 7).mul_(20);
  const QuantizedWeight weight(
      torch::randn({16, 96}), {.type = QuantizationType::int8});
  const c10::Device device = testing::pretend_device();
  for (const double threshold : {0.0, 6.0}) {
    const Tensor expected = llm_int8_linear(x, weight, threshold);
    const Tensor found =
        llm_int8_linear(x.to(device), weight.to(device), threshold).cpu();
    EXPECT_TRUE(found.allclose(expected, 1e-6, 1e-5)) << threshold;
    EXPECT_FALSE(found.allclose(weight.linear(x), 1e-6, 1e-5)) << threshold;
  }
}

class QuantizedDispatch : public ::testing::Test {
 protected:
  QuantizedDispatch() {
    torch::manual_seed(7);
    torch::NoGradGuard no_grad;
    x_ = torch::randn({3, 32});
    whole_ = Net();
    save_model(*whole_, weights());
  }

  [[nodiscard]] fs::path weights() const { return directory_.path() / "model"; }
  [[nodiscard]] fs::path folder() const { return directory_.path() / "disk"; }

  [[nodiscard]] LoadAndQuantizeOptions at(const DeviceMap& map) const {
    return {
        .weights_location = weights(),
        .device_map = map,
        .offload_folder = folder()};
  }

  /// Output of the quantized model in memory.
  Tensor expected(const QuantizationOptions& config) {
    const torch::NoGradGuard no_grad;
    Net net = empty_net();
    const QuantizedModel quantized =
        load_and_quantize_model(*net, config, {.weights_location = weights()});
    return net(x_);
  }

  TemporaryDirectory directory_;
  Tensor x_;
  Net whole_{nullptr};
};

TEST_F(QuantizedDispatch, ComputesTheSameFromDiskToTheLastBit) {
  const torch::NoGradGuard no_grad;
  for (const auto& config : {kNf4, kInt8}) {
    Net net = empty_net();
    const QuantizedModel quantized =
        load_and_quantize_model(*net, config, at({{"", "disk"}}));
    EXPECT_TRUE(has_offloaded_params(*net->last));
    for (int i = 0; i < 3; ++i)
      EXPECT_TRUE(net(x_).equal(expected(config))) << i;
    EXPECT_GE(quantized.dispatch().stats().num_fetches, 5);
    quantized.dispatch().offload();
    EXPECT_EQ(quantized.dispatch().stats().bytes, 0U);
  }
}

TEST_F(QuantizedDispatch, BlocksTravelAsCodes) {
  const torch::NoGradGuard no_grad;
  Net net = empty_net();
  const QuantizedModel quantized = load_and_quantize_model(
      *net,
      kInt8,
      at({{"first", "cpu"},
          {"norm", "cpu"},
          {"middle", "disk"},
          {"last", "cpu"},
          {"head", "cpu"}}));
  EXPECT_EQ(fs::file_size(folder() / "middle.weight.dat"), 64U * 64U);
  EXPECT_EQ(fs::file_size(folder() / "middle.SCB.dat"), 64U * 4U);
  EXPECT_FALSE(fs::exists(folder() / "first.weight.dat"));
  EXPECT_FALSE(has_offloaded_params(*net->first));
  EXPECT_TRUE(net(x_).equal(expected(kInt8)));
  EXPECT_EQ(quantized.dispatch().stats().num_fetches, 1);
  EXPECT_EQ(
      quantized.dispatch().stats().fetched_bytes, std::uint64_t{kMiddleInt8});
}

TEST_F(QuantizedDispatch, HoldsAtMostTheMemoryThatItMay) {
  const torch::NoGradGuard no_grad;
  Net net = empty_net();
  LoadAndQuantizeOptions options = at({{"", "disk"}});
  options.prefetch_memory = kMiddleInt8;
  const QuantizedModel quantized =
      load_and_quantize_model(*net, kInt8, options);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(net(x_).equal(expected(kInt8)));
  const DispatchStats stats = quantized.dispatch().stats();
  EXPECT_LE(stats.peak_bytes, std::uint64_t{kMiddleInt8});
  EXPECT_GE(stats.fetched_bytes, 3 * std::uint64_t{kMiddleInt8});
}

TEST_F(QuantizedDispatch, DispatchesAModelThatIsQuantised) {
  const torch::NoGradGuard no_grad;
  const Tensor wanted = expected(kNf4);
  QuantizationOptions config = kNf4;
  const QuantizedModel quantized = load_and_quantize_model(*whole_, config);
  auto big = dispatch_model(
      whole_, {.device_map = {{"", "disk"}}, .offload_dir = folder()});
  EXPECT_TRUE(fs::exists(folder() / "middle.weight.absmax.dat"));
  EXPECT_TRUE(
      fs::exists(folder() / "middle.weight.quant_state.bitsandbytes__nf4.dat"));
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(big(x_).equal(wanted));
  EXPECT_GT(big.stats().num_fetches, 0);
  expect_error<ConfigError>(
      [&] {
        static_cast<void>(dispatch_model(
            whole_, {.device_map = {{"", "disk"}}, .offload_dir = folder()}));
      },
      "is already offloaded or sharded");
  big.dispatch().release();
  EXPECT_TRUE(whole_(x_).equal(wanted));
  auto again = cpu_offload(whole_);
  EXPECT_TRUE(again(x_).equal(wanted));
}

TEST_F(QuantizedDispatch, AFolderOfAnotherModelIsWrittenAnew) {
  const torch::NoGradGuard no_grad;
  {
    Net other;
    const QuantizedModel quantized = load_and_quantize_model(
        *other,
        kInt8,
        {.device_map = DeviceMap{{"", "disk"}}, .offload_folder = folder()});
    EXPECT_GT(fs::file_size(folder() / "middle.weight.dat"), 0U);
  }
  Net net = empty_net();
  const QuantizedModel quantized =
      load_and_quantize_model(*net, kInt8, at({{"", "disk"}}));
  EXPECT_TRUE(net(x_).equal(expected(kInt8)));
  Net in_place = whole_;
  const QuantizedModel third = load_and_quantize_model(
      *in_place,
      kNf4,
      {.device_map = DeviceMap{{"", "disk"}}, .offload_folder = folder()});
  EXPECT_TRUE(in_place(x_).equal(expected(kNf4)));
}

// If the codes of some layers cannot be written, nothing is quantized and no
// value is lost.
TEST_F(QuantizedDispatch, AFullDiskLeavesTheModelAsItWas) {
  const torch::NoGradGuard no_grad;
  const DeviceMap map{{"", "cpu"}, {"middle", "disk"}};
  const Tensor wanted = whole_(x_);
  for (const bool in_place : {false, true}) {
    SCOPED_TRACE(in_place);
    Net net = in_place ? whole_ : empty_net();
    LoadAndQuantizeOptions options = at(map);
    if (in_place) options.weights_location.clear();
    {
      const testing::FileSizeLimit limit(16);
      expect_error<Error>(
          [&] {
            static_cast<void>(load_and_quantize_model(*net, kNf4, options));
          },
          std::strerror(EFBIG));
    }
    EXPECT_FALSE(fs::exists(folder() / "index.json"));
    if (in_place) {
      EXPECT_TRUE(net(x_).equal(wanted));
    } else {
      EXPECT_TRUE(net->first->weight.is_meta());
      EXPECT_TRUE(net->last->weight.is_meta());
    }
    const QuantizedModel quantized =
        load_and_quantize_model(*net, kNf4, options);
    EXPECT_TRUE(net(x_).equal(expected(kNf4)));
    fs::remove_all(folder());
  }
}

// A strategy places codes by their sizes. The limit has room for the largest
// layer in flight, of 2304 bytes, and for the first two layers, of 1280 and
// 512.
TEST_F(QuantizedDispatch, TakesStrategiesAndTheOptionsOfDispatching) {
  const torch::NoGradGuard no_grad;
  Net net = empty_net();
  LoadAndQuantizeOptions options{
      .weights_location = weights(),
      .device_map = "sequential",
      .max_memory = {{"cpu", 4200}},
      .preload_module_classes = {"Net"},
      .offload_buffers = true,
      .offload_folder = folder()};
  const QuantizedModel quantized = load_and_quantize_model(*net, kNf4, options);
  const DeviceMap& map = quantized.dispatch().device_map();
  EXPECT_EQ(
      map,
      infer_quantized_device_map(
          *empty_net(), kNf4, {.max_memory = {{"cpu", 4200}}}));
  EXPECT_EQ(
      map,
      (DeviceMap{
          {"first", "cpu"},
          {"norm", "cpu"},
          {"middle", "disk"},
          {"last", "disk"},
          {"head", "disk"}}));
  EXPECT_TRUE(net(x_).equal(expected(kNf4)));
  // The whole model is one unit.
  EXPECT_EQ(quantized.dispatch().stats().num_fetches, 1);
  // No layer fits beside the largest one.
  Net whole = empty_net();
  options.max_memory = {{"cpu", 2304 + 1279}};
  const QuantizedModel at_once = load_and_quantize_model(*whole, kNf4, options);
  EXPECT_EQ(at_once.dispatch().device_map(), (DeviceMap{{"", "disk"}}));
  // The net is as large as all its layers together, and leaves no room for
  // other modules.
  NetWithTail with_tail;
  options.max_memory = {{"cpu", 4200}};
  EXPECT_GT(
      infer_quantized_device_map(
          *with_tail, kNf4, {.max_memory = options.max_memory})
          .size(),
      1U);
  LoadAndQuantizeOptions in_place = options;
  in_place.weights_location.clear();
  in_place.no_split_module_classes = {"Net"};
  const QuantizedModel unsplit =
      load_and_quantize_model(*with_tail, kNf4, in_place);
  EXPECT_EQ(unsplit.dispatch().device_map(), (DeviceMap{{"", "disk"}}));
  expect_error<ConfigError>(
      [&] {
        Net other = empty_net();
        options.device_map = "best";
        static_cast<void>(load_and_quantize_model(*other, kNf4, options));
      },
      "balanced_low_0");
}

TEST_F(QuantizedDispatch, CallsTheModuleOnTheMainDevice) {
  const torch::NoGradGuard no_grad;
  const c10::Device second = testing::pretend_device(1);
  Net net = empty_net();
  LoadAndQuantizeOptions options = at({{"", "cpu"}});
  options.main_device = 1;
  const QuantizedModel quantized = load_and_quantize_model(*net, kNf4, options);
  EXPECT_EQ(quantized.dispatch().main_device(), second);
  const Tensor y = quantized.dispatch().call(*net, x_);
  EXPECT_TRUE(y.is_cpu());
  EXPECT_TRUE(y.allclose(expected(kNf4), 1e-5, 1e-6));
  Net missing = empty_net();
  options.main_device = 7;
  expect_error<ConfigError>(
      [&] {
        static_cast<void>(load_and_quantize_model(*missing, kNf4, options));
      },
      "the device 7");
  EXPECT_TRUE(missing->first->weight.is_meta());
}

struct NormedImpl : nn::Module {
  Tensor forward(const Tensor& x) { return norm(linear(x)); }
  nn::Linear linear = register_module("linear", nn::Linear(32, 64));
  nn::BatchNorm1d norm = register_module("norm", nn::BatchNorm1d(64));
};
TORCH_MODULE(Normed);

TEST_F(QuantizedDispatch, OffloadsBuffersIfAsked) {
  const torch::NoGradGuard no_grad;
  Normed whole;
  whole->norm->running_mean.uniform_();
  whole->eval();
  save_model(*whole, directory_.path() / "normed");
  QuantizationOptions config = kNf4;
  config.skip_modules.emplace();
  Tensor wanted;
  for (const bool offload_buffers : {false, true}) {
    for (const bool in_place : {false, true}) {
      SCOPED_TRACE(2 * offload_buffers + in_place);
      Normed net = init_empty_weights([] { return Normed(); }, true);
      net->eval();
      LoadAndQuantizeOptions options = at({{"", "disk"}});
      options.weights_location = directory_.path() / "normed";
      if (in_place) {
        load_checkpoint_in_model(
            *net, options.weights_location, {.map_weights = false});
        options.weights_location.clear();
      }
      options.offload_buffers = offload_buffers;
      const QuantizedModel quantized =
          load_and_quantize_model(*net, config, options);
      EXPECT_EQ(
          detail::offloaded_unit(net->norm->running_mean).keeper != nullptr,
          offload_buffers);
      const Tensor y = net(x_);
      if (!wanted.defined()) wanted = y;
      EXPECT_TRUE(y.equal(wanted));
      fs::remove_all(folder());
    }
  }
}

struct KeyedImpl : nn::Module {
  Tensor forward(const std::map<std::string, Tensor>& inputs) {
    device_of_extra = inputs.at("extra").device();
    return linear(inputs.at("x"));
  }
  nn::Linear linear = register_module("linear", nn::Linear(32, 64));
  c10::Device device_of_extra = at::kCPU;
};
TORCH_MODULE(Keyed);

TEST_F(QuantizedDispatch, LeavesKeysOfArgumentsWhereTheyAre) {
  const torch::NoGradGuard no_grad;
  const c10::Device device = testing::pretend_device(0);
  QuantizationOptions config = kNf4;
  config.skip_modules.emplace();
  const std::map<std::string, Tensor> inputs{
      {"x", x_}, {"extra", torch::ones({2})}};
  for (const bool skips : {false, true}) {
    Keyed keyed;
    LoadAndQuantizeOptions options{.device_map = DeviceMap{{"", 0}}};
    if (skips) options.skip_keys = {"extra"};
    const QuantizedModel quantized =
        load_and_quantize_model(*keyed, config, options);
    static_cast<void>(quantized.dispatch().call(*keyed, inputs));
    EXPECT_EQ(keyed->device_of_extra, skips ? c10::Device(at::kCPU) : device);
  }
}

TEST_F(QuantizedDispatch, AFolderThatHasTheCodesIsNotWrittenAgain) {
  const auto load = [&] {
    Net net = empty_net();
    const QuantizedModel quantized =
        load_and_quantize_model(*net, kNf4, at({{"", "disk"}}));
    std::map<std::string, fs::file_time_type> times;
    for (const auto& file : fs::directory_iterator(folder()))
      times.emplace(file.path().filename(), file.last_write_time());
    return times;
  };
  const auto first = load();
  EXPECT_TRUE(first.contains("last.weight.nested_absmax.dat"));
  EXPECT_EQ(load(), first);
}

TEST_F(QuantizedDispatch, GradientsReachWhatIsNotQuantised) {
  Net resident = empty_net();
  const QuantizedModel first =
      load_and_quantize_model(*resident, kNf4, {.weights_location = weights()});
  const Tensor x = x_.clone().requires_grad_();
  resident(x).sum().backward();

  Net net = empty_net();
  const QuantizedModel quantized = load_and_quantize_model(
      *net,
      kNf4,
      at({{"first", "disk"},
          {"norm", "cpu"},
          {"middle", "disk"},
          {"last", "disk"},
          {"head", "cpu"}}));
  const Tensor y = x_.clone().requires_grad_();
  const Tensor loss = net(y).sum();
  quantized.dispatch().offload();
  loss.backward();
  EXPECT_TRUE(y.grad().equal(x.grad()));
  EXPECT_TRUE(net->norm->weight.grad().equal(resident->norm->weight.grad()));
}

TEST_F(QuantizedDispatch, OffloadedCodesAreReadAndSaved) {
  const torch::NoGradGuard no_grad;
  Net net = empty_net();
  const QuantizedModel quantized =
      load_and_quantize_model(*net, kNf4, at({{"", "disk"}}));
  Net resident = whole_;
  const QuantizedModel other = load_and_quantize_model(*resident, kNf4);
  EXPECT_EQ(quantized.get_memory_footprint(), other.get_memory_footprint());
  EXPECT_TRUE(quantized.weight("middle").dequantize().equal(
      other.weight("middle").dequantize()));
  EXPECT_TRUE(quantized.weight("last")
                  .linear(torch::ones({1, 64}))
                  .equal(other.weight("last").linear(torch::ones({1, 64}))));
  // Operators other than products get the dequantized values.
  EXPECT_TRUE((net->middle->weight * 2).equal(resident->middle->weight * 2));
  const fs::path saved = directory_.path() / "saved";
  static_cast<void>(quantized.save_model(saved));
  Net loaded = empty_net();
  const QuantizedModel third =
      load_and_quantize_model(*loaded, kNf4, {.weights_location = saved});
  EXPECT_TRUE(loaded(x_).equal(expected(kNf4)));
}

TEST_F(QuantizedDispatch, CodesWithoutTheirDispatchSayWhatIsMissing) {
  const torch::NoGradGuard no_grad;
  const QuantizedModel quantized = load_and_quantize_model(*whole_, kInt8);
  {
    auto big = dispatch_model(
        whole_, {.device_map = {{"", "disk"}}, .offload_dir = folder()});
  }
  expect_error<c10::Error>(
      [&] { static_cast<void>(whole_->last(torch::ones({1, 64}))); },
      "last.weight is offloaded, but the Dispatch of its model no longer "
      "exists");
}

TEST_F(QuantizedDispatch, WeightsTravelToAcceleratorsAsCodes) {
  const at::Device device = testing::pretend_device(0);
  const torch::NoGradGuard no_grad;
  for (const auto& config : {kNf4, kInt8}) {
    Net resident = empty_net();
    const QuantizedModel whole =
        load_and_quantize_model(*resident, config, at({{"", 0}}));
    EXPECT_EQ(resident->middle->weight.device(), device);
    const Tensor wanted = resident(x_.to(device)).cpu();
    for (const DeviceMap& map :
         {DeviceMap{
              {"first", 0},
              {"norm", 0},
              {"middle", "cpu"},
              {"last", "disk"},
              {"head", 0}},
          DeviceMap{
              {"first", 0},
              {"norm", 1},
              {"middle", 1},
              {"last", "cpu"},
              {"head", "disk"}}}) {
      Net net = empty_net();
      const QuantizedModel quantized =
          load_and_quantize_model(*net, config, at(map));
      EXPECT_EQ(quantized.dispatch().main_device(), device);
      for (int i = 0; i < 2; ++i)
        EXPECT_TRUE(net(x_.to(device)).cpu().equal(wanted)) << i;
      EXPECT_EQ(net->last->weight.device(), device);
      EXPECT_GT(quantized.dispatch().stats().num_fetches, 0);
    }
  }
}

}  // namespace accelerate::quantize_dispatch_test
