#include <accelerate/accelerate.h>

#include <c10/core/AutogradState.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "support/pretend_device.h"

namespace accelerate {
namespace offload_test {

using torch::Tensor;

struct Gradients {
  Tensor of_x, of_w;
};

Gradients gradients(
    const std::function<Tensor(const Tensor&, const Tensor&)>& forward) {
  const at::Device device = testing::pretend_device();
  // The engine starts its device threads before it knows this device.
  c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
  torch::manual_seed(1);
  const Tensor x = torch::randn({40, 40}).to(device).requires_grad_(true);
  const Tensor w = torch::randn({40, 40}).to(device).requires_grad_(true);
  forward(x, w).sum().backward();
  return {x.grad().cpu(), w.grad().cpu()};
}

Tensor compute(const Tensor& x, const Tensor& w) {
  return (x.mul(w)).mul(x.mul(x)).mul(w);
}

TEST(SaveOnCpu, GivesTheSameGradients) {
  const Gradients expected = gradients(compute);
  for (const bool pin : {true, false}) {
    const Gradients found = gradients([&](const Tensor& x, const Tensor& w) {
      const SaveOnCpu saving({.pin_memory = pin});
      return compute(x, w);
    });
    EXPECT_TRUE(torch::equal(found.of_x, expected.of_x));
    EXPECT_TRUE(torch::equal(found.of_w, expected.of_w));
  }
}

TEST(SaveOnCpu, FreesDeviceMemory) {
  const at::Device device = testing::pretend_device();
  const Tensor x = torch::randn({40, 40}).to(device).requires_grad_(true);
  const auto middle_lives = [&](bool saves) {
    std::optional<SaveOnCpu> saving;
    if (saves) saving.emplace();
    std::optional<c10::weak_intrusive_ptr<c10::StorageImpl>> middle;
    Tensor y;
    {
      const Tensor a = x.mul(x);
      middle = a.storage().getWeakStorageImpl();
      y = a.mul(a);
    }
    return !middle->expired();
  };
  EXPECT_TRUE(middle_lives(false));
  EXPECT_FALSE(middle_lives(true));
}

// 40 x 40 floats are 6400 bytes.
TEST(SaveOnCpu, LeavesSmallTensorsOnTheDevice) {
  const Tensor x =
      torch::randn({40, 40}).to(testing::pretend_device()).requires_grad_(true);
  for (const std::int64_t min_bytes : {6400, 6401}) {
    const SaveOnCpu saving({.min_bytes = min_bytes});
    std::optional<c10::weak_intrusive_ptr<c10::StorageImpl>> middle;
    Tensor y;
    {
      const Tensor a = x.mul(x);
      middle = a.storage().getWeakStorageImpl();
      y = a.mul(a);
    }
    EXPECT_EQ(middle->expired(), min_bytes == 6400);
  }
}

// Only copies to pinned memory can be queued on a stream.
TEST(SaveOnCpu, QueuesCopiesToPinnedMemoryOnly) {
  const at::Device device = testing::pretend_device();
  const Tensor x = torch::randn({40, 40}).to(device).requires_grad_(true);
  const c10::impl::VirtualGuardImpl guard(device.type());
  const c10::Stream before = guard.getStream(device);
  for (const bool pin : {true, false}) {
    guard.exchangeStream(guard.getNewStream(device));
    const auto counts = testing::pretend_counts();
    {
      const SaveOnCpu saving({.pin_memory = pin});
      const Tensor y = x.mul(2).exp();
      EXPECT_EQ(
          testing::pretend_counts().pinned_copies - counts.pinned_copies,
          pin ? 1 : 0);
    }
    guard.exchangeStream(before);
  }
}

TEST(SaveOnCpu, LeavesTensorsOfTheCpuAsTheyAre) {
  const Tensor x = torch::randn({40, 40}, torch::requires_grad());
  Tensor a, y;
  {
    const SaveOnCpu saving;
    a = x.exp();
    y = a.exp();
  }
  y.sum().backward();
  EXPECT_TRUE(torch::allclose(x.grad(), y.detach() * a.detach()));
  {
    const SaveOnCpu saving;
    a = x.exp();
    y = a * a;
  }
  a.detach().add_(1);
  EXPECT_ANY_THROW(y.sum().backward());
}

TEST(CheckpointOffload, KeepsInputsInHostMemory) {
  const Gradients expected = gradients(compute);
  const Gradients found = gradients([&](const Tensor& x, const Tensor& w) {
    const Tensor h = x.mul(2);
    return checkpoint(
        [&] { return compute(h.mul(0.5), w); }, {.offload_inputs = true});
  });
  EXPECT_TRUE(torch::equal(found.of_x, expected.of_x));
  EXPECT_TRUE(torch::equal(found.of_w, expected.of_w));
}

}  // namespace offload_test
}  // namespace accelerate
