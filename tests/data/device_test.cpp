// Loaders whose batches go to an accelerator.
#include <accelerate/accelerate.h>

#include "support/pretend_device.h"

namespace accelerate {
namespace device_test {

using testing::pretend_counts;
using testing::pretend_device;

TensorDataset<2> numbers() {
  return TensorDataset(torch::arange(40), torch::rand({40, 3}));
}

std::vector<std::int64_t> read(
    const DataLoaderOptions& options,
    int index = 0) {
  DataLoader loader(numbers(), options);
  detail::LoaderContext context;
  context.device = pretend_device(index);
  loader.attach(std::move(context));
  std::vector<std::int64_t> all;
  for (auto& [x, y] : loader) {
    EXPECT_EQ(x.device(), pretend_device(index));
    EXPECT_EQ(y.device(), pretend_device(index));
    const torch::Tensor here = x.cpu();
    for (std::int64_t i = 0; i < here.size(0); ++i)
      all.push_back(here[i].item<std::int64_t>());
  }
  return all;
}

std::vector<std::int64_t> expected() {
  std::vector<std::int64_t> all(40);
  std::iota(all.begin(), all.end(), 0);
  return all;
}

TEST(LoaderOnADevice, SendsBatchesFromTheLoop) {
  const auto before = pretend_counts();
  EXPECT_EQ(read({.batch_size = 8}), expected());
  EXPECT_EQ(read({.batch_size = 8}, 1), expected());
  EXPECT_EQ(read({.batch_size = 8, .pin_memory = true}), expected());
  EXPECT_EQ(pretend_counts().side_copies, before.side_copies);
}

TEST(LoaderOnADevice, CopiesAheadOnSideStreamsAndWaitsForThem) {
  const auto before = pretend_counts();
  EXPECT_EQ(
      read({.batch_size = 8, .num_workers = 2, .pin_memory = true}),
      expected());
  const auto after = pretend_counts();
  // Five batches of two tensors.
  EXPECT_EQ(after.side_copies - before.side_copies, 10);
  EXPECT_EQ(after.pinned_copies - before.pinned_copies, 10);
  EXPECT_EQ(after.waits - before.waits, 5);
  EXPECT_EQ(after.recorded - before.recorded, 10);
}

TEST(LoaderOnADevice, CopiesFromUnpinnedMemoryWithoutQueueing) {
  const auto before = pretend_counts();
  EXPECT_EQ(read({.batch_size = 8, .num_workers = 2}, 1), expected());
  const auto after = pretend_counts();
  EXPECT_EQ(after.side_copies, before.side_copies);
  EXPECT_EQ(after.waits - before.waits, 5);
}

TEST(LoaderOnADevice, ReportsTheTransfer) {
  DataLoader loader(
      numbers(), {.batch_size = 8, .num_workers = 1, .pin_memory = true});
  detail::LoaderContext context;
  context.device = pretend_device();
  loader.attach(std::move(context));
  for (auto& batch : loader) static_cast<void>(batch);
  EXPECT_GT(loader.prefetch_report().transfer_seconds, 0);
}

WorldOptions alone() {
  return {.rank = 0, .size = 1, .device = pretend_device()};
}

template <class Loader>
at::Device device_of_batches(Loader& loader) {
  for (auto& [x, y] : loader) {
    EXPECT_EQ(x.device(), y.device());
    return x.device();
  }
  throw std::runtime_error("no batches");
}

TEST(DevicePlacement, IsDecidedByTheCallThenTheItemThenTheAccelerator) {
  for (const bool placement : {true, false}) {
    const Accelerator accelerator(
        {.device_placement = placement, .world = alone()});
    const at::Device by_default = placement ? pretend_device() : at::kCPU;
    const at::Device otherwise = placement ? at::kCPU : pretend_device();
    torch::nn::Linear plain(3, 3), with_option(3, 3);
    auto [model, other, loader, own] = accelerator.prepare(
        plain,
        with_options(with_option, {.device_placement = !placement}),
        DataLoader(numbers(), {.batch_size = 8}),
        DataLoader(
            numbers(), {.batch_size = 8, .device_placement = !placement}));
    EXPECT_EQ(model->weight.device(), by_default);
    EXPECT_EQ(other->weight.device(), otherwise);
    EXPECT_EQ(device_of_batches(loader), by_default);
    EXPECT_EQ(device_of_batches(own), otherwise);
    auto called = accelerator.prepare_data_loader(
        DataLoader(
            numbers(), {.batch_size = 8, .device_placement = !placement}),
        {.device_placement = placement});
    EXPECT_EQ(device_of_batches(called), by_default);
    auto with_workers = accelerator.prepare(DataLoader(
        numbers(),
        {.batch_size = 8, .device_placement = !placement, .num_workers = 2}));
    EXPECT_EQ(device_of_batches(with_workers), otherwise);
  }
}

// Device memory holds garbage until a queued copy to it runs.
bool is_queued(const torch::Tensor& zero) {
  return *static_cast<const std::int64_t*>(zero.const_data_ptr()) != 0;
}

TEST(NonBlocking, LoadersQueueCopiesIfTheirOptionsOrTheAcceleratorsSaySo) {
  struct Case {
    bool config;
    std::optional<bool> own;
    bool is_queued;
  };
  for (const Case& each :
       {Case{false, std::nullopt, false},
        Case{true, std::nullopt, true},
        Case{true, false, false},
        Case{false, true, true}}) {
    const Accelerator accelerator(
        {.dataloader_config = {.non_blocking = each.config}, .world = alone()});
    auto loader = accelerator.prepare(
        DataLoader(numbers(), {.batch_size = 8, .non_blocking = each.own}));
    for (auto& [x, y] : loader) {
      EXPECT_EQ(is_queued(x), each.is_queued);
      EXPECT_TRUE(torch::equal(x.cpu(), torch::arange(8)));
      break;
    }
  }
}

TEST(NonBlocking, SendToDeviceQueuesCopiesIfAsked) {
  for (const bool non_blocking : {false, true}) {
    const torch::Tensor sent = send_to_device(
        torch::zeros({3}, torch::kLong),
        pretend_device(),
        {.non_blocking = non_blocking});
    EXPECT_EQ(is_queued(sent), non_blocking);
    EXPECT_TRUE(torch::equal(sent.cpu(), torch::zeros({3}, torch::kLong)));
  }
}

}  // namespace device_test
}  // namespace accelerate
