#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <torch/torch.h>

#include <gtest/gtest.h>

#include <accelerate/fused.h>

#include "kernels/emulated_kernels.h"

// The kernels of losses for CUDA devices, run on the processor, against
// LibTorch's operators.

namespace accelerate::testing::loss_kernels_test {

using cuda::OnEmulatedDevice;

struct Outcome {
  at::Tensor loss;
  at::Tensor gradient;
};

inline Outcome run(
    const at::Tensor& logits,
    const at::Tensor& targets,
    const FusedCrossEntropyOptions& options) {
  const at::Tensor leaf = logits.detach().clone().requires_grad_();
  const at::Tensor loss = fused_cross_entropy(leaf, targets, options);
  loss.backward(at::ones_like(loss) * 1.5);
  return {loss.detach(), leaf.grad()};
}

inline void expect_near(
    const at::Tensor& found,
    const at::Tensor& expected,
    double tolerance) {
  EXPECT_EQ(found.scalar_type(), expected.scalar_type());
  EXPECT_TRUE(at::allclose(
      found.to(at::kFloat),
      expected.to(at::kFloat),
      tolerance,
      tolerance,
      /*equal_nan=*/true));
}

inline void expect_as_operators(
    const at::Tensor& logits,
    const at::Tensor& targets,
    const FusedCrossEntropyOptions& options,
    bool reversed = false) {
  const Outcome expected = run(logits, targets, options);
  OnEmulatedDevice device(reversed);
  const Outcome found = run(logits, targets, options);
  EXPECT_EQ(device.num_launches, 2);
  expect_near(found.loss, expected.loss, 1e-5);
  expect_near(
      found.gradient,
      expected.gradient,
      logits.scalar_type() == at::kFloat      ? 1e-6
          : logits.scalar_type() == at::kHalf ? 1e-3
                                              : 1e-2);
}

constexpr std::array kDtypes{at::kFloat, at::kBFloat16, at::kHalf};

TEST(LossKernels, ComputeWhatOperatorsDoForEachSize) {
  torch::manual_seed(1);
  for (std::int64_t size = 1; size <= 40; ++size) {
    SCOPED_TRACE(size);
    const at::ScalarType dtype = kDtypes[static_cast<std::size_t>(size) % 3];
    const std::int64_t rows = 1 + size % 5;
    const at::Tensor targets = at::randint(size, {rows}, at::kLong);
    if (rows > 2) targets[1] = -100;
    expect_as_operators(
        at::randn({rows, size}).mul_(4).to(dtype),
        targets,
        {.label_smoothing = size % 2 == 0 ? 0.1 : 0,
         .class_weights =
             size % 3 == 0 ? at::rand({size}) + 0.5 : at::Tensor()},
        size % 4 == 0);
  }
}

// More than one vector per thread, with and without a rest.
TEST(LossKernels, ComputeWhatOperatorsDoForLongRows) {
  torch::manual_seed(2);
  for (const at::ScalarType dtype : kDtypes) {
    for (const std::int64_t classes : {4096, 5003}) {
      const at::Tensor targets = at::randint(classes, {7}, at::kLong);
      for (const auto reduction :
           {LossReduction::mean, LossReduction::sum, LossReduction::none}) {
        expect_as_operators(
            at::randn({7, classes}).mul_(3).to(dtype),
            targets,
            {.label_smoothing = 0.2,
             .reduction = reduction,
             .class_weights = at::rand({classes}) + 0.5,
             .overwrite_logits = reduction == LossReduction::sum});
      }
    }
  }
}

TEST(LossKernels, PassInfinitiesAndNaNsOn) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const at::Tensor logits = at::randn({5, 600});
  logits[0].narrow(0, 0, 300).fill_(-kInfinity);  // all of some threads
  logits[1].fill_(-kInfinity);
  logits[2][7] = std::nanf("");
  logits[3][8] = kInfinity;
  const at::Tensor targets = at::tensor({400, 1, 2, 3, -100}, at::kLong);
  expect_as_operators(logits, targets, {.reduction = LossReduction::none});
  // Rows that do not count.
  const at::Tensor ignored = at::tensor({400, -100, -100, -100, 5}, at::kLong);
  expect_as_operators(logits, ignored, {});
}

TEST(LossKernels, ComputeTheChunkedLoss) {
  torch::manual_seed(3);
  const at::Tensor hidden = at::randn({13, 8}).requires_grad_();
  const at::Tensor weight = at::randn({37, 8}).requires_grad_();
  const at::Tensor targets = at::randint(37, {13}, at::kLong);
  const auto gradients = [&] {
    return torch::autograd::grad(
        {fused_linear_cross_entropy(
            hidden, weight, targets, {.chunk_size = 5})},
        {hidden, weight});
  };
  const auto expected = gradients();
  OnEmulatedDevice device;
  const auto found = gradients();
  EXPECT_EQ(device.num_launches, 6);
  for (std::size_t i = 0; i < 2; ++i) expect_near(found[i], expected[i], 1e-6);
}

}  // namespace accelerate::testing::loss_kernels_test
