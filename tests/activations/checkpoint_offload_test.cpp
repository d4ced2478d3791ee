// Inputs of checkpointed functions, offloaded to host memory.
#include <optional>

#include <accelerate/accelerate.h>

#include "support/pretend_device.h"

namespace accelerate {
namespace checkpoint_offload_test {

using torch::Tensor;

TEST(CheckpointOffload, FreesTheInputsOfTheDevice) {
  const Tensor x =
      torch::randn({4, 4}).to(testing::pretend_device()).requires_grad_(true);
  for (const bool offloads : {false, true}) {
    std::optional<c10::weak_intrusive_ptr<c10::StorageImpl>> input;
    Tensor y;
    {
      // A product with a number saves no operand for backward.
      const Tensor h = x.mul(2);
      input = h.storage().getWeakStorageImpl();
      y = checkpoint([&] { return h.mul(h); }, {.offload_inputs = offloads});
    }
    // A queued copy holds its source until it runs.
    static_cast<void>(x.cpu());
    EXPECT_EQ(input->expired(), offloads);
  }
}

}  // namespace checkpoint_offload_test
}  // namespace accelerate
