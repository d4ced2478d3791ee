// Asynchronous saves of an accelerator's tensors.
#include "checkpoint/save/snapshot.h"
#include "support/pretend_device.h"

namespace accelerate {
namespace device_test {

using testing::pretend_counts;
using testing::pretend_device;

TEST(SnapshotOfADevice, IsCopiedOnASideStreamAheadOfWhatComesNext) {
  const at::Device device = pretend_device();
  const at::Tensor values = torch::arange(1000, torch::kFloat);
  const at::Tensor weight = values.to(device);
  detail::CheckpointContents contents;
  contents.sections.push_back(
      {"model",
       {{"weight", weight, detail::Layout::unsharded({1000}), true},
        {"step", torch::tensor(7), detail::Layout::unsharded({}), true}},
       {}});
  const auto before = pretend_counts();
  detail::SnapshotMemory memory;
  memory.take(contents);
  const auto after = pretend_counts();
  EXPECT_EQ(after.side_copies - before.side_copies, 1);
  EXPECT_EQ(after.pinned_copies - before.pinned_copies, 1);
  // The copies wait for queued work, and later work waits for the copies.
  EXPECT_EQ(after.waits - before.waits, 2);
  EXPECT_EQ(after.recorded - before.recorded, 1);
  weight.copy_(torch::zeros(1000));
  memory.wait();
  EXPECT_TRUE(contents.sections[0].entries[0].tensor.equal(values));
  EXPECT_EQ(contents.sections[0].entries[1].tensor.item<std::int64_t>(), 7);
}

}  // namespace device_test
}  // namespace accelerate
