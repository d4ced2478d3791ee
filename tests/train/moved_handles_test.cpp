#include <filesystem>
#include <fstream>
#include <string>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <accelerate/accelerate.h>
#include <accelerate/datasets.h>
#include <accelerate/safetensors.h>

#include "support/expect_error.h"
#include "support/temporary_directory.h"

namespace accelerate {
namespace moved_handles_test {

using testing::expect_error;

AcceleratorOptions on_cpu() {
  AcceleratorOptions options;
  options.cpu = true;
  return options;
}

// A handle that was moved from, or was moved over, refers to its object: `use`
// gives the same as before.
template <class Handle, class Use>
void expect_kept(Handle& handle, Use use) {
  const auto before = use(handle);
  Handle other = std::move(handle);
  EXPECT_EQ(use(handle), before);
  EXPECT_EQ(use(other), before);
  handle = std::move(other);
  EXPECT_EQ(use(other), before);
}

// An object with one owner refuses every use once it was moved from, and works
// again once it was assigned to.
template <class Object, class... Uses>
void expect_refused(Object& object, const std::string& name, Uses... uses) {
  Object other = std::move(object);
  const std::string words = "a " + name + " was used after it was moved from";
  (expect_error<ConfigError>([&] { uses(object); }, words), ...);
  (uses(other), ...);
}

TEST(MovedFrom, HandlesOfAnAcceleratorStillReferToIt) {
  Accelerator accelerator(on_cpu());
  torch::nn::Linear net(2, 1);
  torch::optim::SGD sgd(net->parameters(), 0.1);
  optim::StepLR step_lr(sgd, {.step_size = 10, .gamma = 0.5});
  auto [model, optimizer, scheduler] = accelerator.prepare(net, sgd, step_lr);
  expect_kept(
      accelerator, [](const Accelerator& it) { return it.num_processes(); });
  expect_kept(accelerator, [](Accelerator& it) { return it.device().str(); });
  expect_kept(model, [](auto& it) {
    return it(torch::ones({1, 2})).template item<float>();
  });
  expect_kept(optimizer, [](Optimizer& it) {
    it.zero_grad();
    it.step();
    return it.step_was_skipped();
  });
  expect_kept(scheduler, [](Scheduler& it) { return it.get_last_lr(); });
  GradientState state = accelerator.gradient_state();
  expect_kept(state, [](GradientState& it) { return it.num_steps(); });
  NamedLogger logger = accelerator.world().logger("test");
  expect_kept(logger, [](NamedLogger& it) {
    it.debug("not visible");
    return 0;
  });
  Mesh mesh = accelerator.mesh();
  expect_kept(mesh, [](Mesh& it) { return it.degree(Axis::replicate); });
}

TEST(MovedFrom, WorldsAndTheirGroupsStillRefer) {
  World world;
  expect_kept(world, [](World& it) { return it.size(); });
  Group group = world.group();
  expect_kept(group, [](Group& it) { return it.size(); });
}

TEST(MovedFrom, LoadersAreRefusedWithTheirName) {
  const auto data = torch::arange(6);
  auto loader = DataLoader(TensorDataset(data), {.batch_size = 2});
  expect_refused(
      loader,
      "DataLoader",
      [](auto& it) { static_cast<void>(it.size()); },
      [](auto& it) {
        for (auto& batch : it) static_cast<void>(batch);
      },
      [](auto& it) { static_cast<void>(it.dataset()); });
  // `loader` was moved from.
  Accelerator accelerator(on_cpu());
  expect_error<ConfigError>(
      [&] { static_cast<void>(accelerator.prepare(std::move(loader))); },
      "a DataLoader was used after it was moved from");
}

TEST(MovedFrom, ReadersAreRefusedWithTheirName) {
  const testing::TemporaryDirectory directory;
  const std::filesystem::path file = directory / "lines.json";
  std::ofstream(file) << "{\"x\": 1}\n{\"x\": 2}\n";
  JsonLinesFile lines(file.string());
  expect_kept(lines, [](JsonLinesFile& it) { return it.size(); });
  JsonRecord record = lines.record(0);
  expect_refused(record, "JsonRecord", [](JsonRecord& it) {
    static_cast<void>(it.tensor("x"));
  });
  const std::filesystem::path table = directory / "table.csv";
  std::ofstream(table) << "a,b\n1,2\n";
  CsvFile csv(table.string());
  expect_kept(csv, [](CsvFile& it) { return it.num_rows(); });
  torch::nn::Linear net(2, 1);
  save_model(*net, directory.path());
  safetensors::Reader reader(directory / "model.safetensors");
  expect_refused(
      reader,
      "Reader",
      [](safetensors::Reader& it) { static_cast<void>(it.header()); },
      [](safetensors::Reader& it) { static_cast<void>(it.path()); });
}

TEST(MovedFrom, ModelsThatOwnTheirWeightsAreRefusedWithTheirName) {
  torch::nn::Linear net(2, 1);
  Dispatch dispatch =
      dispatch_module(*net, {.device_map = DeviceMap{{"", "cpu"}}});
  expect_refused(
      dispatch,
      "Dispatch",
      [](Dispatch& it) { static_cast<void>(it.device_map()); },
      [](Dispatch& it) { static_cast<void>(it.stats()); },
      [](Dispatch& it) { it.offload(); });
}

}  // namespace moved_handles_test
}  // namespace accelerate
