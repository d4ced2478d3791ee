#include <torch/torch.h>

#include <gtest/gtest.h>

#include <accelerate/fused.h>

#include "kernels/device/device_kernels.h"
#include "support/gpu_device.h"

// Fused functions on a GPU against the CPU.

namespace accelerate::testing::fused_gpu_test {

using FusedOnGpu = OnGpu;

inline void expect_near(const at::Tensor& found, const at::Tensor& expected) {
  EXPECT_TRUE(at::allclose(
      found.cpu().to(at::kFloat), expected.to(at::kFloat), 2e-2, 2e-2));
}

TEST_F(FusedOnGpu, KernelsAreCompiledAndUsed) {
  for (const auto& known : detail::known_programs()) {
    for (const std::string_view entry : known.entries) {
      EXPECT_NE(
          detail::find_kernel(
              device_, known.program, std::string(entry).c_str()),
          nullptr)
          << known.program.text();
    }
  }
  EXPECT_EQ(detail::missing_kernels(), "");
}

TEST_F(FusedOnGpu, FunctionsHaveTheCpusResults) {
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const at::Tensor x = at::randn({37, 1000}).to(dtype);
    const at::Tensor other = at::randn({37, 1000}).to(dtype);
    const at::Tensor weight = (at::rand({1000}) + 0.5).to(dtype);
    const at::Tensor targets = at::randint(1000, {37}, at::kLong);
    const at::Tensor angles = at::rand({37, 500});
    const auto results = [&](at::Device device) {
      const auto on = [&](const at::Tensor& each) {
        return each.to(device).detach().requires_grad_(
            each.is_floating_point());
      };
      const at::Tensor in = on(x), residual = on(other), scale = on(weight);
      const NormalizedSum layer =
          fused_add_layer_norm(in, residual, scale, scale);
      const NormalizedSum rms =
          fused_add_rms_norm(layer.sum, layer.normalized, scale);
      const at::Tensor turned = rotary_embedding(
          rms.normalized, angles.cos().to(device), angles.sin().to(device));
      const at::Tensor active =
          fused_bias_activation(turned, scale, Activation::gelu);
      const at::Tensor loss = fused_cross_entropy(
          active, targets.to(device), {.label_smoothing = 0.1});
      std::vector<at::Tensor> all =
          torch::autograd::grad({loss}, {in, residual, scale});
      all.push_back(loss.detach());
      all.push_back(active.detach());
      return all;
    };
    const auto expected = results(at::kCPU), found = results(device_);
    for (std::size_t i = 0; i < found.size(); ++i)
      expect_near(found[i], expected[i]);
  }
}

}  // namespace accelerate::testing::fused_gpu_test
