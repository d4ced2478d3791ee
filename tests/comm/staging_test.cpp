// Tensors on an accelerator that no transport can access.
#include <accelerate/world.h>

#include "support/pretend_device.h"
#include "support/run_on_ranks.h"

namespace accelerate {
namespace staging_test {

using testing::pretend_device;
using testing::run_in_worlds;

at::Tensor on_device(const at::Tensor& tensor) {
  return tensor.to(pretend_device());
}

void expect_values(const at::Tensor& tensor, const at::Tensor& expected) {
  EXPECT_EQ(tensor.device(), pretend_device());
  EXPECT_TRUE(torch::equal(tensor.cpu(), expected)) << tensor.cpu();
}

TEST(HostStaging, ReducesTensorsOfADevice) {
  pretend_device();
  run_in_worlds(3, [](const World& world) {
    const Group& group = world.group();
    const at::Tensor sum = on_device(torch::full({2, 2}, world.rank() + 1.0));
    group.all_reduce(sum);
    expect_values(sum, torch::full({2, 2}, 6.0));
    const at::Tensor mean =
        on_device(torch::full({2}, world.rank() + 1, at::kHalf));
    group.all_reduce(mean, ReduceOp::mean);
    expect_values(mean, torch::full({2}, 2, at::kHalf));
    const at::Tensor once = on_device(torch::full({2}, world.rank() + 1));
    group.reduce(once, 1, ReduceOp::max);
    expect_values(
        once, torch::full({2}, world.rank() == 1 ? 3 : world.rank() + 1));
    expect_values(
        group.reduce_scatter(on_device(torch::arange(6))),
        torch::arange(6).narrow(0, 2 * world.rank(), 2) * 3);
  });
}

TEST(HostStaging, MovesTensorsOfADevice) {
  pretend_device();
  run_in_worlds(3, [](const World& world) {
    const Group& group = world.group();
    const int mine = world.rank();
    const at::Tensor value = on_device(torch::full({3}, mine, at::kShort));
    const auto all = group.all_gather(value);
    for (int r = 0; r < 3; ++r) {
      expect_values(
          all[static_cast<std::size_t>(r)], torch::full({3}, r, at::kShort));
    }
    const auto uneven =
        group.all_gather_uneven(on_device(torch::full({mine}, mine)));
    expect_values(uneven[2], torch::full({2}, 2));
    const auto gathered = group.gather(value, 2);
    if (mine == 2) expect_values(gathered[1], torch::full({3}, 1, at::kShort));
    std::vector<at::Tensor> parts;
    for (int r = 0; r < 3; ++r)
      parts.push_back(on_device(torch::full({r + 1}, 10 * mine + r)));
    const auto received = group.all_to_all(parts);
    for (int r = 0; r < 3; ++r) {
      expect_values(
          received[static_cast<std::size_t>(r)],
          torch::full({mine + 1}, 10 * r + mine));
    }
    const at::Tensor output = on_device(torch::zeros({2}, at::kLong));
    std::vector<at::Tensor> inputs;
    for (int r = 0; r < 3; ++r)
      inputs.push_back(on_device(torch::full({2}, r * r)));
    group.scatter(output, inputs, 0);
    expect_values(output, torch::full({2}, mine * mine));
    group.broadcast(output, 2);
    expect_values(output, torch::full({2}, 4));
    if (mine == 0) group.send(on_device(torch::full({2}, 9)), 1, 5);
    if (mine == 1) {
      group.recv(output, 0, 5);
      expect_values(output, torch::full({2}, 9));
    }
  });
}

}  // namespace staging_test
}  // namespace accelerate
