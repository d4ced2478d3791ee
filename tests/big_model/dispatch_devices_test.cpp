#include <gtest/gtest.h>

#include <map>
#include <string>

#include <rapidcheck.h>

#include <accelerate/big_model.h>

#include "big_model/random_model.h"
#include "support/pretend_device.h"
#include "support/temporary_directory.h"

namespace accelerate::dispatch_devices_test {

using testing::RandomModel;
using testing::TemporaryDirectory;
using torch::Tensor;

struct ModelRun {
  Tensor output;
  std::vector<Tensor> gradients;
};

template <class Forward>
ModelRun run(RandomModel& model, const Tensor& x, Forward&& forward) {
  ModelRun result;
  model->zero_grad();
  result.output = forward(x);
  result.output.pow(2).sum().backward();
  // A graph that lives keeps the devices that weights had.
  result.output = result.output.detach();
  for (const auto& parameter : model->parameters())
    result.gradients.push_back(
        parameter.grad().defined() ? parameter.grad().cpu() : Tensor());
  return result;
}

void expect_equal(const ModelRun& found, const ModelRun& expected) {
  RC_ASSERT(found.output.equal(expected.output));
  RC_ASSERT(found.gradients.size() == expected.gradients.size());
  for (std::size_t i = 0; i < found.gradients.size(); ++i)
    RC_ASSERT(found.gradients[i].equal(expected.gradients[i]));
}

// Outputs and gradients of any map are those of the model in one place.
TEST(DispatchDevices, GiveTheSameAsOnePlaceForAnyModelAndMap) {
  const at::Device device = testing::pretend_device();
  ASSERT_FALSE(device.is_cpu());
  const TemporaryDirectory directory(TemporaryDirectory::memory());
  int number = 0;
  EXPECT_TRUE(rc::check([&] {
    const bool with_devices = *rc::gen::arbitrary<bool>();
    // LibTorch has another LayerNorm (kind 1), with other roundings, where a
    // device has none of its own.
    const auto kind =
        with_devices ? rc::gen::element(0, 2, 3) : rc::gen::element(0, 1, 2, 3);
    const auto kinds =
        *rc::gen::nonEmpty(rc::gen::container<std::vector<int>>(kind));
    torch::manual_seed(*rc::gen::inRange(0, 1000));
    RandomModel model(kinds);
    model->eval();
    std::vector<std::pair<std::string, MapDevice>> entries;
    for (std::size_t i = 0; i < kinds.size(); ++i) {
      const MapDevice place = with_devices
          ? *rc::gen::element(
                MapDevice("cpu"), MapDevice("disk"), MapDevice(0), MapDevice(1))
          : *rc::gen::element(MapDevice("cpu"), MapDevice("disk"));
      entries.emplace_back("block" + std::to_string(i), place);
    }
    const Tensor x = torch::randn({3, 6});
    const ModelRun expected =
        run(model, x, [&](const Tensor& input) { return model(input); });
    model->zero_grad();
    DispatchOptions options{
        .device_map = DeviceMap(entries),
        .offload_dir = directory.path() / std::to_string(number++),
        .offload_buffers = *rc::gen::arbitrary<bool>()};
    if (*rc::gen::arbitrary<bool>())
      options.prefetch_memory = *rc::gen::element(1, 300, 1 << 20);
    auto big = dispatch_model(model, options);
    for (int i = 0; i < 2; ++i) {
      expect_equal(
          run(model, x, [&](const Tensor& input) { return big(input); }),
          expected);
    }
  }));
}

struct TwoImpl : torch::nn::Module {
  std::map<std::string, Tensor> forward(std::map<std::string, Tensor> inputs) {
    device_of_extra = inputs.at("extra").device();
    return {{"y", linear(inputs.at("x"))}};
  }
  torch::nn::Linear linear = register_module("linear", torch::nn::Linear(6, 2));
  at::Device device_of_extra = at::kCPU;
};
TORCH_MODULE(Two);

TEST(DispatchDevices, ComputeOnTheMainDevice) {
  const at::Device first = testing::pretend_device(0);
  const at::Device second = testing::pretend_device(1);
  const torch::NoGradGuard no_grad;
  Two two;
  const std::map<std::string, Tensor> inputs{
      {"x", torch::randn({3, 6})}, {"extra", torch::ones({1})}};
  const Tensor expected = two(inputs).at("y");
  {
    auto big =
        dispatch_model(two, {.device_map = {{"", "cpu"}}, .main_device = 1});
    EXPECT_EQ(big.dispatch().main_device(), second);
    const auto outputs = big(inputs);
    EXPECT_TRUE(outputs.at("y").is_cpu());
    EXPECT_TRUE(outputs.at("y").equal(expected));
    EXPECT_EQ(two->device_of_extra, second);
    big.dispatch().release();
    EXPECT_EQ(two->linear->weight.device(), second);
  }
  Two other;
  testing::copy_values(two, other);
  auto big =
      dispatch_model(other, {.device_map = {{"", 0}}, .skip_keys = {"extra"}});
  EXPECT_TRUE(big(inputs).at("y").equal(expected));
  EXPECT_EQ(other->device_of_extra, at::Device(at::kCPU));
  EXPECT_EQ(other->linear->weight.device(), first);
}

TEST(DispatchDevices, OffloadToTheExecutionDevice) {
  const at::Device device = testing::pretend_device(1);
  const torch::NoGradGuard no_grad;
  torch::nn::Linear linear(6, 2);
  const Tensor x = torch::randn({3, 6});
  const Tensor expected = linear(x);
  auto big = cpu_offload(linear, {.execution_device = device});
  EXPECT_EQ(big.dispatch().main_device(), device);
  EXPECT_TRUE(big(x).equal(expected));
  EXPECT_EQ(linear->weight.device(), device);
}

}  // namespace accelerate::dispatch_devices_test
