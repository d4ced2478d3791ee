#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include <ATen/autocast_mode.h>
#include <torch/torch.h>

#include <gtest/gtest.h>

#include <accelerate/error.h>
#include <accelerate/fused.h>

#include "kernels/emulated_kernels.h"
#include "support/expect_error.h"

// Fused pieces of layers against LibTorch's operators: by LibTorch's operators,
// and by the kernels for CUDA devices, run on the processor.

namespace accelerate::testing::layers_test {

using cuda::OnEmulatedDevice;

constexpr std::array kDtypes{at::kFloat, at::kDouble, at::kBFloat16, at::kHalf};

inline double tolerance_of(at::ScalarType dtype) {
  return dtype == at::kDouble ? 1e-12
      : dtype == at::kFloat   ? 3e-6
      : dtype == at::kHalf    ? 3e-3
                              : 2e-2;
}

inline void expect_near(
    const at::Tensor& found,
    const at::Tensor& expected,
    double tolerance) {
  ASSERT_EQ(found.sizes(), expected.sizes());
  if (found.numel() == 0) return;
  const at::Tensor wanted = expected.to(at::kDouble);
  const double largest = std::max(1.0, wanted.abs().max().item<double>());
  EXPECT_LE(
      (found.to(at::kDouble) - wanted).abs().max().item<double>(),
      tolerance * largest);
}

/// Outputs, and the gradients of inputs for fixed incoming gradients.
using Values = std::vector<at::Tensor>;
using Compute = std::function<Values(const Values& inputs)>;

inline Values run(const Compute& compute, const Values& given) {
  Values inputs;
  for (const at::Tensor& each : given)
    inputs.push_back(each.detach().clone().requires_grad_());
  Values outputs = compute(inputs), incoming;
  for (const at::Tensor& output : outputs) {
    incoming.push_back(
        ((at::arange(output.numel(), at::kFloat) * 7).remainder(5) - 2)
            .view_as(output)
            .to(output.scalar_type()));
  }
  Values all = torch::autograd::grad(outputs, inputs, incoming);
  for (const at::Tensor& output : outputs) all.push_back(output.detach());
  return all;
}

// Compares with what LibTorch computes from the same values in fp32 or fp64.
inline void expect_as_operators(
    const Compute& found,
    const Compute& expected,
    const Values& inputs) {
  const at::ScalarType dtype = inputs[0].scalar_type();
  const at::ScalarType wide = dtype == at::kDouble ? at::kDouble : at::kFloat;
  Values widened;
  for (const at::Tensor& each : inputs) widened.push_back(each.to(wide));
  const Values wanted = run(expected, widened);
  const auto compare = [&] {
    const Values made = run(found, inputs);
    for (std::size_t i = 0; i < made.size(); ++i) {
      EXPECT_EQ(
          made[i].scalar_type(),
          i < inputs.size() ? inputs[i].scalar_type() : dtype);
      expect_near(made[i], wanted[i], tolerance_of(dtype));
    }
  };
  compare();
  if (dtype == at::kDouble) return;
  for (const bool reversed : {false, true}) {
    SCOPED_TRACE("emulated");
    const OnEmulatedDevice device(reversed);
    compare();
  }
}

// Central differences in fp64 of a weighted sum of the outputs.
inline void expect_gradients(const Compute& compute, const Values& given) {
  const Values found = run(compute, given);
  const auto weighted = [&](const Values& inputs) {
    double sum = 0;
    for (const at::Tensor& output : compute(inputs)) {
      sum += (((at::arange(output.numel(), at::kDouble) * 7).remainder(5) - 2) *
              output.flatten())
                 .sum()
                 .item<double>();
    }
    return sum;
  };
  constexpr double kStep = 1e-6;
  for (std::size_t input = 0; input < given.size(); ++input) {
    for (std::int64_t i = 0; i < given[input].numel(); ++i) {
      const auto moved = [&](double by) {
        Values inputs;
        for (const at::Tensor& each : given) inputs.push_back(each.clone());
        inputs[input].view(-1)[i] += by;
        return weighted(inputs);
      };
      EXPECT_NEAR(
          found[input].reshape({-1})[i].item<double>(),
          (moved(kStep) - moved(-kStep)) / (2 * kStep),
          1e-6);
    }
  }
}

constexpr std::array kActivations{
    Activation::gelu,
    Activation::gelu_tanh,
    Activation::silu,
    Activation::relu};

inline Compute fused_activation(Activation activation) {
  return [activation](const Values& in) {
    return Values{fused_bias_activation(in[0], in[1], activation)};
  };
}

inline Compute plain_activation(Activation activation) {
  return [activation](const Values& in) {
    const at::Tensor x = in[0] + in[1];
    switch (activation) {
      case Activation::gelu:
        return Values{at::gelu(x)};
      case Activation::gelu_tanh:
        return Values{at::gelu(x, "tanh")};
      case Activation::silu:
        return Values{at::silu(x)};
      case Activation::relu:
        return Values{at::relu(x)};
    }
    return Values{};
  };
}

TEST(FusedBiasActivation, IsThatOfLibTorchForEachSize) {
  torch::manual_seed(1);
  for (std::int64_t size = 1; size <= 40; ++size) {
    SCOPED_TRACE(size);
    const auto turn = static_cast<std::size_t>(size);
    const Activation activation = kActivations[turn / 4 % 4];
    const at::ScalarType dtype = kDtypes[turn % 4];
    expect_as_operators(
        fused_activation(activation),
        plain_activation(activation),
        {at::randn({3, 1 + size % 4, size}).mul_(2).to(dtype),
         at::randn({size}).to(dtype)});
  }
  // Several pieces per thread, strided inputs.
  for (const Activation activation : kActivations) {
    expect_as_operators(
        fused_activation(activation),
        plain_activation(activation),
        {at::randn({64, 40}).t().to(at::kBFloat16),
         at::randn({64}).to(at::kBFloat16)});
    expect_as_operators(
        fused_activation(activation),
        plain_activation(activation),
        {at::randn({50, 520}), at::randn({520})});
  }
}

TEST(FusedBiasActivation, HasTheGradientsOfItsDifferences) {
  torch::manual_seed(2);
  for (const Activation activation : kActivations) {
    expect_gradients(
        fused_activation(activation),
        {at::randn({3, 4}, at::kDouble), at::randn({4}, at::kDouble)});
  }
}

TEST(FusedBiasActivation, TakesFp32BiasesBesideBf16) {
  const at::Tensor x = at::randn({3, 8}).to(at::kBFloat16);
  const at::Tensor bias = at::randn({8});
  at::autocast::set_autocast_enabled(at::kCPU, true);
  const at::Tensor found = fused_bias_activation(x, bias, Activation::silu);
  at::autocast::set_autocast_enabled(at::kCPU, false);
  EXPECT_EQ(found.scalar_type(), at::kBFloat16);
  EXPECT_TRUE(at::equal(found, at::silu(x + bias.to(at::kBFloat16))));
}

inline Compute fused_norm(bool centers) {
  return [centers](const Values& in) {
    const NormalizedSum made = centers
        ? fused_add_layer_norm(in[0], in[1], in[2], in[3], 1e-3)
        : fused_add_rms_norm(in[0], in[1], in[2], 1e-3);
    return Values{made.normalized, made.sum};
  };
}

inline Compute plain_norm(bool centers) {
  return [centers](const Values& in) {
    const at::Tensor sum = in[0] + in[1];
    return Values{
        centers ? at::layer_norm(sum, {sum.size(-1)}, in[2], in[3], 1e-3)
                : at::rms_norm(sum, {sum.size(-1)}, in[2], 1e-3),
        sum};
  };
}

TEST(FusedAddNorm, IsThatOfLibTorchForEachSize) {
  torch::manual_seed(3);
  for (std::int64_t size = 1; size <= 44; ++size) {
    SCOPED_TRACE(size);
    const bool centers = size % 3 != 0;
    const at::ScalarType dtype =
        kDtypes[static_cast<std::size_t>(size) / 4 % 4];
    // LibTorch's parameters in half are rounded gradients of sums over rows.
    const at::ScalarType parameters =
        size % 2 == 0 || dtype == at::kDouble ? dtype : at::kFloat;
    Values inputs{
        at::randn({2, 3, size}).to(dtype),
        at::randn({2, 3, size}).to(dtype),
        (at::rand({size}) + 0.5).to(parameters)};
    if (centers) inputs.push_back(at::randn({size}).to(parameters));
    expect_as_operators(fused_norm(centers), plain_norm(centers), inputs);
  }
}

TEST(FusedAddNorm, IsThatOfLibTorchForManyLongRows) {
  torch::manual_seed(4);
  for (const bool centers : {false, true}) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      Values inputs{
          at::randn({7, 4096}).to(dtype),
          at::randn({4096, 7}).to(dtype).t(),
          (at::rand({4096}) + 0.5).to(dtype)};
      if (centers) inputs.push_back(at::randn({4096}).to(dtype));
      expect_as_operators(fused_norm(centers), plain_norm(centers), inputs);
    }
  }
}

TEST(FusedAddNorm, NeedsNoParameters) {
  torch::manual_seed(5);
  const Values inputs{at::randn({3, 16}), at::randn({3, 16})};
  for (const bool uses_sum : {false, true}) {
    const auto outputs = [uses_sum](const NormalizedSum& made) {
      return uses_sum ? Values{made.normalized, made.sum}
                      : Values{made.normalized};
    };
    expect_as_operators(
        [&](const Values& in) {
          return outputs(fused_add_layer_norm(in[0], in[1]));
        },
        [&](const Values& in) {
          const at::Tensor sum = in[0] + in[1];
          return outputs({at::layer_norm(sum, {16}), sum});
        },
        inputs);
    expect_as_operators(
        [&](const Values& in) {
          return outputs(fused_add_rms_norm(in[0], in[1]));
        },
        [&](const Values& in) {
          const at::Tensor sum = in[0] + in[1];
          return outputs({at::rms_norm(sum, {16}, {}, 1e-6), sum});
        },
        inputs);
  }
  // The sum alone.
  expect_as_operators(
      [](const Values& in) {
        return Values{fused_add_rms_norm(in[0], in[1]).sum};
      },
      [](const Values& in) { return Values{in[0] + in[1]}; },
      inputs);
}

TEST(FusedAddNorm, HasTheGradientsOfItsDifferences) {
  torch::manual_seed(6);
  const auto random = [](at::IntArrayRef sizes) {
    return at::randn(sizes, at::kDouble);
  };
  for (const bool centers : {false, true}) {
    Values inputs{random({3, 5}), random({3, 5}), random({5})};
    if (centers) inputs.push_back(random({5}));
    expect_gradients(fused_norm(centers), inputs);
  }
}

struct Angles {
  at::Tensor cosines;
  at::Tensor sines;
  static Angles
  of(std::int64_t positions, std::int64_t pairs, at::ScalarType dtype) {
    const at::Tensor angles = at::arange(positions, at::kDouble).unsqueeze(1) /
        at::pow(100.0, at::arange(pairs, at::kDouble) / pairs);
    return {angles.cos().to(dtype), angles.sin().to(dtype)};
  }
};

// As models write it: x * cos + rotate_half(x) * sin.
inline at::Tensor
plain_rotary(const at::Tensor& x, const Angles& angles, bool interleaved) {
  const std::int64_t half = x.size(-1) / 2;
  if (interleaved) {
    const at::Tensor pairs = x.unflatten(-1, {half, 2});
    const at::Tensor a = pairs.select(-1, 0), b = pairs.select(-1, 1);
    return at::stack(
               {a * angles.cosines - b * angles.sines,
                a * angles.sines + b * angles.cosines},
               -1)
        .flatten(-2);
  }
  const at::Tensor turned =
      at::cat({-x.narrow(-1, half, half), x.narrow(-1, 0, half)}, -1);
  const auto twice = [](const at::Tensor& each) {
    return at::cat({each, each}, -1);
  };
  return x * twice(angles.cosines) + turned * twice(angles.sines);
}

TEST(RotaryEmbedding, IsWhatModelsWrite) {
  torch::manual_seed(7);
  for (const at::ScalarType dtype : kDtypes) {
    const at::ScalarType wide = dtype == at::kDouble ? dtype : at::kFloat;
    for (const bool interleaved : {false, true}) {
      for (const std::int64_t pairs : {1, 3, 8, 33}) {
        const Angles angles = Angles::of(5, pairs, wide);
        expect_as_operators(
            [&](const Values& in) {
              return Values{rotary_embedding(
                  in[0], angles.cosines, angles.sines, interleaved)};
            },
            [&](const Values& in) {
              return Values{plain_rotary(in[0], angles, interleaved)};
            },
            {at::randn({2, 5, 3, 2 * pairs}).transpose(1, 2).to(dtype)});
      }
    }
  }
}

TEST(RotaryEmbedding, CanBeDifferentiatedTwice) {
  torch::manual_seed(8);
  const Angles angles = Angles::of(2, 2, at::kDouble);
  const at::Tensor x = at::randn({2, 4}, at::kDouble).requires_grad_();
  for (const bool interleaved : {false, true}) {
    const auto second = [&](const at::Tensor& made) {
      const at::Tensor first =
          torch::autograd::grad({made.pow(3).sum()}, {x}, {}, true, true)[0];
      return torch::autograd::grad({first.square().sum()}, {x})[0];
    };
    expect_near(
        second(rotary_embedding(x, angles.cosines, angles.sines, interleaved)),
        second(plain_rotary(x, angles, interleaved)),
        1e-12);
  }
}

TEST(FusedLayers, TakeNoRows) {
  const at::Tensor none = at::empty({0, 4});
  const at::Tensor ones = at::ones({4});
  EXPECT_EQ(
      fused_bias_activation(none, ones, Activation::gelu).sizes(),
      none.sizes());
  EXPECT_EQ(
      fused_add_layer_norm(none, none, ones, ones).normalized.sizes(),
      none.sizes());
  EXPECT_EQ(fused_add_rms_norm(none, none).sum.sizes(), none.sizes());
  EXPECT_EQ(
      rotary_embedding(none, at::empty({0, 2}), at::empty({0, 2})).sizes(),
      none.sizes());
}

TEST(FusedLayers, RefuseSecondGradientsOfKernelsByName) {
  const OnEmulatedDevice device;
  const auto expect = [](const Compute& compute, const std::string& function) {
    const at::Tensor x = at::randn({2, 8}).requires_grad_();
    const at::Tensor first = torch::autograd::grad(
        {compute({x})[0].square().sum()}, {x}, {}, true, true)[0];
    expect_error<ConfigError>(
        [&] { first.sum().backward(); },
        "the gradients of " + function +
            "() must be differentiated no further");
  };
  expect(
      [](const Values& in) {
        return Values{
            fused_bias_activation(in[0], at::ones({8}), Activation::gelu)};
      },
      "fused_bias_activation");
  expect(
      [](const Values& in) {
        return Values{fused_add_layer_norm(in[0], in[0]).normalized};
      },
      "fused_add_layer_norm");
  expect(
      [](const Values& in) {
        return Values{fused_add_rms_norm(in[0], in[0]).normalized};
      },
      "fused_add_rms_norm");
}

TEST(FusedLayers, SayWhatDoesNotFit) {
  const at::Tensor x = at::randn({2, 4});
  const auto expect = [](const std::function<void()>& call,
                         const std::string& phrase) {
    expect_error<ConfigError>(call, phrase);
  };
  expect(
      [&] { (void)fused_bias_activation(x, {}, Activation::gelu); },
      "fused_bias_activation(): bias must be defined, but is not");
  expect(
      [&] { (void)fused_bias_activation(x, at::ones({3}), Activation::gelu); },
      "bias must have shape [4], but is of shape [3]");
  expect(
      [&] {
        (void)fused_bias_activation(
            x, at::ones({4}, at::kBFloat16), Activation::gelu);
      },
      "bias must be Float, as the input is, but is BFloat16");
  expect(
      [&] {
        (void)fused_bias_activation(
            at::ones({}), at::ones({4}), Activation::gelu);
      },
      "input must have features, but is a scalar");
  expect(
      [&] { (void)fused_add_layer_norm(x, at::randn({2, 5})); },
      "fused_add_layer_norm(): residual must be Float of shape [2, 4] on cpu, "
      "as the input is, but is Float of shape [2, 5] on cpu");
  expect(
      [&] { (void)fused_add_rms_norm(x, {}); },
      "fused_add_rms_norm(): residual must be defined, but is not");
  expect(
      [&] { (void)fused_add_rms_norm(x, x, at::ones({4}, at::kMeta)); },
      "weight must be on cpu, but is on meta");
  expect(
      [&] { (void)fused_add_layer_norm(x, x, {}, {}, -1); },
      "epsilon must be at least 0, but is -1");
  expect(
      [&] { (void)rotary_embedding(at::ones({4}), x, x); },
      "rotary_embedding(): input must have shape [..., positions, an even "
      "number of features], but is of shape [4]");
  expect(
      [&] { (void)rotary_embedding(x, x, {}); },
      "cosines must have shape [2, 2], but is of shape [2, 4]; sines must be "
      "defined, but is not");
  expect(
      [&] {
        const at::Tensor angles = at::ones({2, 2}, at::kBFloat16);
        (void)rotary_embedding(x, angles, angles);
      },
      "cosines must be Float, but is BFloat16");
}

}  // namespace accelerate::testing::layers_test
