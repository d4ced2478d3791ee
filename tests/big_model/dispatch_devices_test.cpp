#include <gtest/gtest.h>

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

}  // namespace accelerate::dispatch_devices_test
