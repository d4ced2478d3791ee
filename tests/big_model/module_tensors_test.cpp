#include <accelerate/module_tensors.h>

#include <memory>
#include <string>
#include <vector>

#include <accelerate/error.h>
#include <accelerate/model_device_map.h>

#include "support/expect_error.h"

namespace accelerate {
namespace module_tensors_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct NetImpl : torch::nn::Module {
  NetImpl() {
    scale = register_parameter("scale", torch::full({3}, 2.0));
    shift = register_buffer("shift", torch::full({3}, 1.0));
    first = register_module("first", torch::nn::Linear(3, 3));
    second = register_module("second", torch::nn::Linear(3, 3));
  }
  torch::Tensor scale, shift;
  torch::nn::Linear first{nullptr}, second{nullptr};
};
TORCH_MODULE(Net);

std::vector<std::string> names(const WeightList& list) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : list) names.push_back(name);
  return names;
}

TEST(NamedModuleTensors, TakesBuffersAndModulesBelowIfAsked) {
  const Net net;
  EXPECT_THAT(names(named_module_tensors(*net)), ElementsAre("scale", "shift"));
  EXPECT_THAT(
      names(named_module_tensors(*net, {.include_buffers = false})),
      ElementsAre("scale"));
  EXPECT_THAT(
      names(named_module_tensors(*net, {.recurse = true})),
      ElementsAre(
          "scale",
          "first.weight",
          "first.bias",
          "second.weight",
          "second.bias",
          "shift"));
  EXPECT_TRUE(get_non_persistent_buffers(*net, {.recurse = true}).empty());
}

TEST(SetModuleTensor, IsSeenByMembersAndKeepsDtypeAndGradients) {
  Net net;
  set_module_tensor_to_device(
      *net,
      "first.weight",
      torch::kCPU,
      {.value = torch::full({3, 3}, 5, torch::kInt)});
  EXPECT_EQ(net->first->weight.scalar_type(), torch::kFloat);
  EXPECT_TRUE(net->first->weight.requires_grad());
  EXPECT_TRUE(net->first->weight.eq(5).all().item<bool>());
}

TEST(SetModuleTensor, TakesADtypeForFloatingPointValues) {
  Net net;
  set_module_tensor_to_device(
      *net,
      "scale",
      torch::kCPU,
      {.value = torch::ones({3}), .dtype = torch::kDouble});
  EXPECT_EQ(net->scale.scalar_type(), torch::kDouble);
}

TEST(SetModuleTensor, SharesMemoryOfValuesThatNeedNoConversion) {
  Net net;
  const torch::Tensor value = torch::ones({3});
  set_module_tensor_to_device(*net, "shift", torch::kCPU, {.value = value});
  EXPECT_EQ(net->shift.const_data_ptr(), value.const_data_ptr());
}

TEST(SetModuleTensor, CopiesTiedWeightsToADeviceOnce) {
  Net net;
  const torch::Tensor value = torch::ones({3, 3}, torch::kFloat);
  const torch::Tensor there = torch::ones({3, 3}, torch::kDouble);
  TiedParamsMap tied{{value.const_data_ptr(), {{torch::kCPU, there}}}};
  set_module_tensor_to_device(
      *net,
      "second.weight",
      torch::kCPU,
      {.value = value, .dtype = torch::kDouble, .tied_params_map = &tied});
  EXPECT_EQ(net->second->weight.const_data_ptr(), there.const_data_ptr());
}

TEST(SetModuleTensor, GoesToTheMetaDeviceAndBack) {
  Net net;
  set_module_tensor_to_device(*net, "first.bias", torch::kMeta);
  EXPECT_TRUE(net->first->bias.is_meta());
  EXPECT_TRUE(net->first->bias.requires_grad());
  testing::expect_error<ConfigError>(
      [&] { set_module_tensor_to_device(*net, "first.bias", torch::kCPU); },
      "pass a value");
  set_module_tensor_to_device(
      *net, "first.bias", torch::kCPU, {.value = torch::ones({3})});
  EXPECT_EQ(net->first->bias.sum().item<float>(), 3);
}

TEST(SetModuleTensor, NamesWhatIsWrong) {
  Net net;
  testing::expect_error<ConfigError>(
      [&] { set_module_tensor_to_device(*net, "first.weights", torch::kCPU); },
      "no parameter or buffer named \"weights\"");
  testing::expect_error<ConfigError>(
      [&] { set_module_tensor_to_device(*net, "third.weight", torch::kCPU); },
      "no module named \"third\"");
  testing::expect_error<ConfigError>(
      [&] {
        set_module_tensor_to_device(
            *net, "scale", torch::kCPU, {.value = torch::ones({2})});
      },
      "shape [3]");
}

TEST(Ties, AreRestoredAndFoundAgain) {
  Net net;
  EXPECT_TRUE(find_tied_parameters(*net).empty());
  retie_parameters(*net, {{"first.weight", "second.weight"}});
  EXPECT_THAT(
      find_tied_parameters(*net),
      ElementsAre(ElementsAre("first.weight", "second.weight")));
  const torch::NoGradGuard no_grad;
  net->first->weight.fill_(4);
  EXPECT_TRUE(net->second->weight.eq(4).all().item<bool>());
}

TEST(Ties, WarnAboutSeveralPlaces) {
  const std::vector<std::vector<std::string>> tied{
      {"first.weight", "second.weight"}};
  EXPECT_THAT(
      check_tied_parameters_on_same_device(
          tied, {{"first", "cpu"}, {"second", "disk"}}),
      HasSubstr("second.weight on disk"));
  EXPECT_EQ(check_tied_parameters_on_same_device(tied, {{"", "cpu"}}), "");
}

TEST(AlignModule, PutsTensorsBackWhereTheyWere) {
  Net net;
  const auto device = align_module_device(
      *net->first, torch::kCPU, [&] { return net->first->weight.device(); });
  EXPECT_EQ(device, torch::kCPU);
  EXPECT_FALSE(has_offloaded_params(*net->first));
}

TEST(ModelSizes, AreThoseOfTheTree) {
  const Net net;
  const auto sizes = compute_module_sizes(*net);
  EXPECT_EQ(sizes.at(""), 2 * 48 + 24);
  EXPECT_EQ(sizes.at("first"), 48);
  EXPECT_EQ(sizes.at("shift"), 12);
  EXPECT_EQ(compute_module_total_buffer_size(*net), 12);
  const MaximumSizes largest = calculate_maximum_sizes(*net);
  EXPECT_EQ(largest.total_bytes, 120);
  EXPECT_EQ(largest.largest_layer_bytes, 48);
  EXPECT_THAT(largest.largest_layers, ElementsAre("first", "second"));
}

TEST(ModelMaps, AreInferredBalancedAndChecked) {
  const Net net;
  const DeviceMap map = infer_auto_device_map(
      *net, {.max_memory = {{"cpu", 160}}, .clean_result = false});
  EXPECT_EQ(map.device_of("first"), MapDevice("cpu"));
  EXPECT_NO_THROW(check_device_map(*net, map));
  testing::expect_error<ConfigError>(
      [&] { check_device_map(*net, {{"first", "cpu"}}); }, "second.weight");
  const MaxMemory balanced = get_balanced_memory(
      *net, {.max_memory = {{0, 1000}, {1, 1000}}, .low_zero = true});
  EXPECT_EQ(balanced[0].second.bytes(), 0);
}

TEST(ModelMaps, KnowTheMemoryOfThisMachine) {
  const MaxMemory memory = get_max_memory();
  ASSERT_FALSE(memory.empty());
  EXPECT_EQ(memory.back().first, MapDevice("cpu"));
  EXPECT_GT(memory.back().second.bytes(), 0);
  const MaxMemory given = get_max_memory({{"disk", "1KB"}, {"cpu", "2KB"}});
  EXPECT_EQ(given[0].first, MapDevice("cpu"));
  EXPECT_EQ(given[1].second.bytes(), 1000);
}

}  // namespace module_tensors_test
}  // namespace accelerate
