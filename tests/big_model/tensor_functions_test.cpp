#include <gmock/gmock.h>

#include <filesystem>

#include <accelerate/big_model.h>
#include <accelerate/empty_weights.h>
#include <accelerate/error.h>
#include <accelerate/model_device_map.h>
#include <accelerate/module_tensors.h>

#include "support/expect_error.h"
#include "support/temporary_directory.h"

namespace accelerate::tensor_functions_test {

namespace nn = torch::nn;
using ::testing::ElementsAre;
using testing::expect_error;
using ::testing::IsEmpty;

struct BlockImpl : nn::Module {
  nn::Linear linear = register_module("linear", nn::Linear(2, 3));
  nn::BatchNorm1d norm = register_module("norm", nn::BatchNorm1d(3));
  torch::Tensor scale = register_parameter("scale", torch::ones({3}));
  torch::Tensor shift = register_buffer("shift", torch::ones({3}));
};
TORCH_MODULE(Block);

std::vector<std::string> names_of(const WeightList& tensors) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : tensors) names.push_back(name);
  return names;
}

TEST(NamedModuleTensors, AreTheModulesOwn) {
  const Block block;
  EXPECT_THAT(
      names_of(named_module_tensors(*block)), ElementsAre("scale", "shift"));
  EXPECT_THAT(
      names_of(named_module_tensors(*block, {.include_buffers = false})),
      ElementsAre("scale"));
  EXPECT_TRUE(
      named_module_tensors(*block).front().second.is_same(block->scale));
}

TEST(NamedModuleTensors, RecurseIntoModulesBelow) {
  const Block block;
  EXPECT_THAT(
      names_of(named_module_tensors(
          *block, {.include_buffers = false, .recurse = true})),
      ElementsAre(
          "scale", "linear.weight", "linear.bias", "norm.weight", "norm.bias"));
  const auto all = named_module_tensors(
      *block, {.recurse = true, .remove_non_persistent = true});
  EXPECT_EQ(all.size(), 9U);
}

TEST(NonPersistentBuffers, AreNoneInLibTorch) {
  const Block block;
  EXPECT_THAT(get_non_persistent_buffers(*block), IsEmpty());
  EXPECT_THAT(
      get_non_persistent_buffers(*block, {.recurse = true, .fqns = true}),
      IsEmpty());
}

TEST(IdTensorStorage, IsEqualForTensorsThatShareMemory) {
  const torch::Tensor a = torch::ones({4});
  EXPECT_EQ(id_tensor_storage(a), id_tensor_storage(a.view({2, 2})));
  EXPECT_NE(id_tensor_storage(a), id_tensor_storage(a.clone()));
  const auto meta = torch::TensorOptions().device(torch::kMeta);
  EXPECT_NE(
      id_tensor_storage(torch::ones({4}, meta)),
      id_tensor_storage(torch::ones({4}, meta)));
}

TEST(SetModuleTensor, GivesAParameterItsValueEverywhere) {
  Block block = init_empty_weights([] { return Block(); });
  ASSERT_TRUE(block->linear->weight.is_meta());
  const torch::Tensor value = torch::rand({3, 2});
  set_module_tensor_to_device(
      *block, "linear.weight", torch::kCPU, {.value = value});
  EXPECT_TRUE(block->linear->weight.equal(value));
  EXPECT_TRUE(block->linear->weight.requires_grad());
  set_module_tensor_to_device(*block, "linear.weight", torch::kMeta);
  EXPECT_TRUE(block->linear->weight.is_meta());
}

TEST(SetModuleTensor, ConvertsFloatingPointValues) {
  Block block;
  const torch::Tensor value = torch::rand({3, 2});
  set_module_tensor_to_device(
      *block,
      "linear.weight",
      torch::kCPU,
      {.value = value, .dtype = torch::kHalf, .clear_cache = false});
  EXPECT_TRUE(block->linear->weight.equal(value.to(torch::kHalf)));
  // Without a dtype the tensor keeps its own.
  set_module_tensor_to_device(
      *block,
      "linear.weight",
      torch::kCPU,
      {.value = value, .non_blocking = true});
  EXPECT_EQ(block->linear->weight.scalar_type(), torch::kHalf);
}

TEST(SetModuleTensor, CopiesATiedTensorToADeviceOnce) {
  Block block = init_empty_weights([] { return Block(); });
  const torch::Tensor value = torch::rand({3, 2});
  TiedParamsMap copies;
  const torch::Tensor there = value.clone();
  copies[value.data_ptr()] = {{torch::kCPU, there}};
  set_module_tensor_to_device(
      *block,
      "linear.weight",
      torch::kCPU,
      {.value = value, .tied_params_map = &copies});
  EXPECT_EQ(block->linear->weight.data_ptr(), there.data_ptr());
}

TEST(SetModuleTensor, RefusesWhatCannotBe) {
  Block block = init_empty_weights([] { return Block(); });
  const auto set = [&](const char* name, const SetModuleTensorOptions& with) {
    set_module_tensor_to_device(*block, name, torch::kCPU, with);
  };
  expect_error<ConfigError>(
      [&] { set("linear.wait", {.value = torch::ones({3, 2})}); },
      "parameter or buffer named \"wait\"");
  expect_error<ConfigError>(
      [&] { set("liner.weight", {.value = torch::ones({3, 2})}); },
      "module named \"liner\"");
  expect_error<ConfigError>(
      [&] { set("linear.weight", {.value = torch::ones({2, 3})}); }, "[2, 3]");
  expect_error<ConfigError>([&] { set("linear.weight", {}); }, "linear.weight");
}

TEST(Ties, AreFoundCheckedAndMadeAgain) {
  nn::Sequential net(nn::Linear(2, 2), nn::Linear(2, 2), nn::Linear(2, 2));
  EXPECT_THAT(find_tied_parameters(*net), IsEmpty());
  auto& last = *net->ptr(2)->as<nn::Linear>();
  retie_parameters(*net, {{"0.weight", "2.weight"}});
  EXPECT_EQ(
      last.weight.data_ptr(), net->ptr(0)->as<nn::Linear>()->weight.data_ptr());
  EXPECT_THAT(
      check_tied_parameters_on_same_device(
          {{"0.weight", "2.weight"}}, {{"0", 0}, {"1", 0}, {"2", "cpu"}}),
      ::testing::HasSubstr("2.weight"));
  EXPECT_EQ(
      check_tied_parameters_on_same_device(
          {{"0.weight", "2.weight"}}, {{"", "cpu"}}),
      "");
}

TEST(AlignModuleDevice, MovesNothingThatIsThere) {
  Block block;
  const void* const before = block->scale.data_ptr();
  align_module_device(
      *block, torch::kCPU, [&] { EXPECT_EQ(block->scale.data_ptr(), before); });
  EXPECT_FALSE(has_offloaded_params(*block));
}

TEST(ModuleSizesOfAModule, AreThoseOfTheModelForTest) {
  nn::Sequential net(nn::Linear(3, 4), nn::BatchNorm1d(4), nn::Linear(4, 5));
  const auto sizes = compute_module_sizes(*net);
  EXPECT_EQ(sizes.at(""), 236);
  EXPECT_EQ(sizes.at("0"), 64);
  EXPECT_EQ(sizes.at("1"), 72);
  EXPECT_EQ(sizes.at("2"), 100);
  EXPECT_EQ(compute_module_sizes(*net, {.dtype = "float16"}).at(""), 122);
  EXPECT_EQ(
      compute_module_sizes(
          *net,
          {.dtype = "float16", .special_dtypes = {{"0.weight", "float32"}}})
          .at("0"),
      48 + 8);
  EXPECT_EQ(compute_module_sizes(*net, {.buffers_only = true}).at(""), 40);
  EXPECT_EQ(compute_module_total_buffer_size(*net), 40);
  const MaximumSizes maximum = calculate_maximum_sizes(*net);
  EXPECT_EQ(maximum.total_bytes, 236);
  EXPECT_EQ(maximum.largest_layer_bytes, 100);
  EXPECT_THAT(maximum.largest_layers, ElementsAre("2"));
}

std::string text(const DeviceMap& map) {
  std::string all;
  for (const Placement& each : map.placements())
    all += each.name + ":" + each.device.name() + " ";
  return all;
}

TEST(InferAutoDeviceMapOptions, DecideTheMap) {
  nn::Sequential net(nn::Linear(3, 4), nn::BatchNorm1d(4), nn::Linear(4, 5));
  EXPECT_EQ(
      text(infer_auto_device_map(*net, {.max_memory = {{0, 200}, {1, 200}}})),
      "0:0 1:1 2:1 ");
  EXPECT_EQ(
      text(infer_auto_device_map(
          *net,
          {.max_memory = {{0, 100}, {1, 200}},
           .dtype = "float16",
           .special_dtypes = {{"0.weight", "float16"}}})),
      "0:0 1:1 2:1 ");
  EXPECT_EQ(
      text(infer_auto_device_map(*net, {.max_memory = {{"cpu", 300}}})),
      ":cpu ");
  EXPECT_EQ(
      text(infer_auto_device_map(
          *net,
          {.max_memory = {{"cpu", 300}},
           .verbose = true,
           .clean_result = false})),
      "0:cpu 1:cpu 2:cpu ");
  EXPECT_EQ(
      text(infer_auto_device_map(
          *net,
          {.max_memory = {{"cpu", 300}},
           .no_split_module_classes = {"Sequential"}})),
      ":cpu ");
}

TEST(InferAutoDeviceMapOptions, OffloadBuffersSilencesTheWarning) {
  nn::Sequential net(nn::Linear(3, 4), nn::BatchNorm1d(4), nn::Linear(4, 5));
  const MaxMemory memory{{0, 100}, {"cpu", 200}};
  EXPECT_FALSE(
      infer_auto_device_map(*net, {.max_memory = memory}).warnings().empty());
  EXPECT_TRUE(infer_auto_device_map(
                  *net, {.max_memory = memory, .offload_buffers = true})
                  .warnings()
                  .empty());
}

TEST(InferAutoDeviceMap, KnowsStrategiesByName) {
  nn::Sequential net(nn::Linear(3, 4), nn::BatchNorm1d(4), nn::Linear(4, 5));
  const MaxMemory memory{{0, 300}, {1, 300}};
  EXPECT_EQ(
      text(infer_auto_device_map(*net, "sequential", {.max_memory = memory})),
      ":0 ");
  EXPECT_EQ(
      text(infer_auto_device_map(
          *net, "balanced_low_0", {.max_memory = memory})),
      ":1 ");
  EXPECT_EQ(
      text(infer_auto_device_map(*net, "auto", {.max_memory = memory})),
      text(infer_auto_device_map(*net, "balanced", {.max_memory = memory})));
}

TEST(BalancedMemoryOfAModule, IsThatOfAccelerate) {
  nn::Sequential net(nn::Linear(3, 4), nn::BatchNorm1d(4), nn::Linear(4, 5));
  const MaxMemory balanced =
      get_balanced_memory(*net, {.max_memory = {{0, 300}, {1, 300}}});
  EXPECT_EQ(balanced.at(0).second.bytes(), 215);
  EXPECT_EQ(balanced.at(1).second.bytes(), 300);
  EXPECT_EQ(
      get_balanced_memory(
          *net, {.max_memory = {{0, 300}, {1, 300}}, .low_zero = true})
          .at(0)
          .second.bytes(),
      0);
  // Half as large, with a block that is not split.
  EXPECT_EQ(
      get_balanced_memory(
          *net, {.max_memory = {{0, 300}, {1, 300}}, .dtype = "float16"})
          .at(0)
          .second.bytes(),
      61 + static_cast<int>(1.25 * 40));
  EXPECT_EQ(
      get_balanced_memory(
          *net,
          {.max_memory = {{0, 300}, {1, 300}},
           .no_split_module_classes = {"Linear"},
           .special_dtypes = {{"0.weight", "float32"}}})
          .at(0)
          .second.bytes(),
      118 + static_cast<int>(1.25 * 78));
}

TEST(GetMaxMemory, IsTheMemoryThatIsLeft) {
  const MaxMemory free = get_max_memory();
  ASSERT_FALSE(free.empty());
  EXPECT_TRUE(free.back().first.is_cpu());
  EXPECT_GT(free.back().second.bytes(), 1 << 20);
}

TEST(PlanDeviceMapOptions, DecideThePlaces) {
  nn::Sequential net;
  for (int i = 0; i < 4; ++i) net->push_back(nn::Linear(100, 100));
  // 40,400 bytes each; all of them fit.
  const PlannedDeviceMap all =
      plan_device_map(*net, {.max_memory = {{"cpu", 1 << 20}}});
  EXPECT_EQ(all.forward_seconds, all.resident_seconds);
  for (const Placement& each : all.map.placements())
    EXPECT_TRUE(each.device.is_cpu());
  // Room for two buffers and one layer.
  PlanDeviceMapOptions little{
      .max_memory = {{"cpu", 3 * 40'400}},
      .speeds = {.flops_per_second = 1e9, .disk_bytes_per_second = 1e6}};
  const PlannedDeviceMap slow = plan_device_map(*net, little);
  EXPECT_GT(slow.forward_seconds, slow.resident_seconds);
  int on_disk = 0;
  for (const Placement& each : slow.map.placements())
    on_disk += each.device.is_disk() ? 1 : 0;
  EXPECT_EQ(on_disk, 3);
  // Long computation hides the reads of the blocks that follow.
  little.num_tokens = 100'000;
  const PlannedDeviceMap busy = plan_device_map(*net, little);
  EXPECT_LT(
      busy.forward_seconds / busy.resident_seconds,
      slow.forward_seconds / slow.resident_seconds);
  little.num_tokens = 1;
  little.block_seconds = {{"0", 1.0}, {"1", 1.0}, {"2", 1.0}, {"3", 1.0}};
  EXPECT_NEAR(plan_device_map(*net, little).resident_seconds, 4.0, 1e-9);
  little.dtype = "float16";
  const PlannedDeviceMap half = plan_device_map(*net, little);
  EXPECT_LT(half.forward_seconds, 4.1);
  little.special_dtypes = {{"0.weight", "float32"}};
  EXPECT_GE(plan_device_map(*net, little).forward_seconds, 4.0);
  little.no_split_module_classes = {"Sequential"};
  EXPECT_THROW(
      static_cast<void>(plan_device_map(
          *net,
          {.max_memory = {{"cpu", 100}},
           .no_split_module_classes = {"Linear"}})),
      ConfigError);
}

TEST(MeasureSpeeds, ArePositive) {
  const MachineSpeeds speeds = measure_speeds();
  EXPECT_GT(speeds.flops_per_second, 1e6);
  EXPECT_GT(speeds.memory_bytes_per_second, 1e6);
  EXPECT_EQ(
      speeds.disk_bytes_per_second, MachineSpeeds().disk_bytes_per_second);
}

TEST(MeasureSpeeds, ReadTheDiskOfAFolderAndLeaveNothingThere) {
  const testing::TemporaryDirectory folder;
  const MachineSpeeds speeds = measure_speeds(folder.path());
  EXPECT_GT(speeds.disk_bytes_per_second, 1e5);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  // File systems without direct reads are measured, too.
  const testing::TemporaryDirectory in_memory(
      testing::TemporaryDirectory::memory());
  EXPECT_GT(measure_speeds(in_memory.path()).disk_bytes_per_second, 1e5);
  testing::expect_error<Error>(
      [&] { static_cast<void>(measure_speeds(folder / "missing")); },
      "name a folder with 64 MB of free space");
}

}  // namespace accelerate::tensor_functions_test
