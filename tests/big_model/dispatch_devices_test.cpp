#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <rapidcheck.h>

#include <accelerate/big_model.h>
#include <accelerate/module_tensors.h>

#include "big_model/random_model.h"
#include "gate/factory_scope.h"
#include "support/pretend_device.h"
#include "support/temporary_directory.h"

namespace accelerate::dispatch_devices_test {

using testing::RandomTree;
using testing::TemporaryDirectory;
using torch::Tensor;

using Shape = testing::RandomTreeImpl::Shape;
using Entries = std::vector<std::pair<std::string, MapDevice>>;

constexpr int kMostDepth = 3;

Shape random_shape(int depth) {
  const auto any_number = rc::gen::resize(
      rc::kNominalSize, rc::gen::inRange(depth == kMostDepth ? 1 : 0, 4));
  const int num_children = depth == 0 ? 0 : *any_number;
  if (num_children == 0)
    return {*rc::gen::inRange(0, testing::RandomBlockImpl::kNumKinds)};
  Shape shape;
  for (int i = 0; i < num_children; ++i)
    shape.children.push_back(random_shape(depth - 1));
  return shape;
}

// Chooses places for a whole tree: for a group at once, or for its parts.
void place(
    const testing::RandomTreeImpl& tree,
    const std::string& name,
    const std::vector<MapDevice>& places,
    Entries& entries) {
  const auto any_place = [&] { return *rc::gen::elementOf(places); };
  if (tree.block ||
      *rc::gen::resize(rc::kNominalSize, rc::gen::inRange(0, 6)) == 0) {
    entries.emplace_back(name, any_place());
    return;
  }
  const std::string prefix = name.empty() ? "" : name + ".";
  entries.emplace_back(prefix + "offset", any_place());
  for (const auto& child : tree.named_children()) {
    const auto below =
        std::static_pointer_cast<testing::RandomTreeImpl>(child.value());
    place(*below, prefix + child.key(), places, entries);
  }
}

struct ModelRun {
  Tensor output;
  std::vector<Tensor> gradients;
};

template <class Forward>
ModelRun run(RandomTree& model, const Tensor& x, Forward&& forward) {
  ModelRun result;
  model->zero_grad();
  // Makes dropout draw the same mask.
  torch::manual_seed(1);
  result.output = forward(x);
  result.output.pow(2).sum().backward();
  // Detaches the output, since a live graph keeps the devices of the weights.
  result.output = result.output.detach().cpu();
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

// Any map gives the outputs and gradients of the model in one place. That place
// is an accelerator if the map has one, since LibTorch's LayerNorm rounds
// differently there. RC_PARAMS=max_success=1000 tries more trees and maps.
TEST(DispatchDevices, GiveTheSameAsOnePlaceForAnyModelAndMap) {
  const at::Device device = testing::pretend_device();
  ASSERT_FALSE(device.is_cpu());
  const TemporaryDirectory directory(TemporaryDirectory::memory());
  int number = 0;
  EXPECT_TRUE(rc::check([&] {
    std::vector<MapDevice> places{"cpu", "disk"};
    if (*rc::gen::arbitrary<bool>()) places.insert(places.end(), {0, 1});
    const Shape shape = random_shape(kMostDepth);
    torch::manual_seed(*rc::gen::inRange(0, 1000));
    RandomTree model(shape);
    RandomTree twin(shape);
    testing::copy_values(model, twin);
    const bool is_training = *rc::gen::arbitrary<bool>();
    model->train(is_training);
    twin->train(is_training);
    Entries entries;
    place(*model, "", places, entries);
    RC_TAG(entries.size() > 4 ? "more than 4 places" : "few places");
    const DeviceMap map(entries);
    const bool uses_device =
        std::any_of(entries.begin(), entries.end(), [](const auto& entry) {
          return entry.second.is_accelerator();
        });
    const Tensor x = torch::randn({3, 6});
    if (uses_device) {
      for (const Tensor& each : twin->parameters())
        detail::move_in_place(each, device);
      for (const Tensor& each : twin->buffers())
        detail::move_in_place(each, device);
    }
    DispatchOptions options{
        .device_map = map,
        .offload_dir = directory.path() / std::to_string(number++),
        // Training changes buffers, which must not be offloaded then.
        .offload_buffers = !is_training && *rc::gen::arbitrary<bool>()};
    if (*rc::gen::arbitrary<bool>())
      options.prefetch_memory = *rc::gen::element(1, 300, 1 << 20);
    auto big = dispatch_model(model, options);
    for (int i = 0; i < 2; ++i) {
      const ModelRun expected = run(twin, x, [&](const Tensor& input) {
        return twin(uses_device ? input.to(device) : input);
      });
      expect_equal(
          run(model, x, [&](const Tensor& input) { return big(input); }),
          expected);
    }
    big.dispatch().release();
    const auto buffers = model->buffers();
    for (std::size_t i = 0; i < buffers.size(); ++i)
      RC_ASSERT(buffers[i].cpu().equal(twin->buffers()[i].cpu()));
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

TEST(DispatchDevices, AlignAModuleWithAnyDevice) {
  const at::Device first = testing::pretend_device(0);
  const at::Device second = testing::pretend_device(1);
  const torch::NoGradGuard no_grad;
  for (const bool on_disk : {false, true}) {
    SCOPED_TRACE(on_disk);
    const TemporaryDirectory directory;
    torch::nn::Linear linear(6, 2);
    const Tensor x = torch::randn({3, 6});
    const Tensor weight = linear->weight.clone();
    auto big = on_disk
        ? disk_offload(linear, directory.path(), {.execution_device = first})
        : cpu_offload(linear, {.execution_device = first});
    for (const at::Device device : {second, at::Device(at::kCPU), first}) {
      const Tensor before = big(x);
      align_module_device(*linear, device, [&] {
        EXPECT_EQ(linear->weight.device(), device);
        linear->weight.mul_(2);
        return 0;
      });
      EXPECT_TRUE(has_offloaded_params(*linear));
      EXPECT_EQ(linear->weight.device(), first);
      EXPECT_TRUE(big(x).allclose(before * 2 - linear->bias.cpu(), 1e-5, 1e-6));
    }
    big.dispatch().release();
    EXPECT_TRUE(linear->weight.cpu().equal(weight * 8));
  }
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
