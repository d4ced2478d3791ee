// Float8 layers on a device that multiplies float8 matrices and is as strict
// about operands as cuBLAS.
#include <memory>
#include <string>
#include <vector>

#include <ATen/record_function.h>
#include <c10/core/AutogradState.h>
#include <torch/library.h>
#include <torch/torch.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <accelerate/precision.h>

#include "gate/watched_tensor.h"
#include "precision/fp8/float8_keeper.h"
#include "precision/fp8/float8_rules.h"
#include "support/pretend_device.h"

namespace accelerate::detail {

namespace float8_products_device_test {

namespace nn = torch::nn;
using at::Tensor;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Way = Float8Multiplier::Way;

/// What the device supports, and how many products it computed.
struct DeviceAbilities {
  bool multiplies = true;
  bool takes_scales_of_rows = true;
  bool takes_blocks = true;
  std::int64_t most_rows = 1 << 20;
  int num_products = 0;
};
DeviceAbilities abilities;

// Reads scales of 32 values each in the layout that cuBLAS documents.
Tensor
read_block_scales(const Tensor& scale, std::int64_t rows, std::int64_t k) {
  const Tensor bytes = scale.view(at::kByte).cpu();
  const std::int64_t columns = (k / 32 + 3) / 4 * 4;
  TORCH_CHECK(bytes.numel() == (rows + 127) / 128 * 128 * columns);
  Tensor found = at::empty({rows, k});
  auto* const out = found.mutable_data_ptr<float>();
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < k; ++c) {
      const std::int64_t block = c / 32;
      const std::int64_t tile = r / 128 * (columns / 4) + block / 4;
      const std::int64_t place =
          tile * 512 + r % 32 * 16 + r % 128 / 32 * 4 + block % 4;
      out[r * k + c] =
          std::ldexp(1.0F, bytes.const_data_ptr<std::uint8_t>()[place] - 127);
    }
  }
  return found;
}

Tensor scaled_mm(
    const Tensor& a,
    const Tensor& b,
    const Tensor& scale_a,
    const Tensor& scale_b,
    const std::optional<Tensor>& bias,
    const std::optional<Tensor>& scale_result,
    std::optional<at::ScalarType> out_dtype,
    bool) {
  TORCH_CHECK(abilities.multiplies, "this device has no float8 units");
  TORCH_CHECK(!bias && !scale_result);
  const std::int64_t m = a.size(0), k = a.size(1), n = b.size(1);
  TORCH_CHECK(m <= abilities.most_rows, "too many rows");
  TORCH_CHECK(k % 16 == 0 && n % 16 == 0, "sizes are multiples of 16");
  TORCH_CHECK(a.is_contiguous(), "the first operand is row-major");
  TORCH_CHECK(b.t().is_contiguous(), "the second operand is column-major");
  TORCH_CHECK(
      a.scalar_type() != at::kFloat8_e5m2 ||
          b.scalar_type() != at::kFloat8_e5m2,
      "one operand is e4m3");
  Tensor left = a.cpu().to(at::kFloat), right = b.cpu().to(at::kFloat);
  if (scale_a.scalar_type() == at::kFloat8_e8m0fnu) {
    TORCH_CHECK(abilities.takes_blocks, "no scales of blocks");
    TORCH_CHECK(k % 32 == 0);
    left = left * read_block_scales(scale_a, m, k);
    right = right * read_block_scales(scale_b, n, k).t();
  } else if (scale_a.dim() == 2) {
    TORCH_CHECK(abilities.takes_scales_of_rows, "no scales of rows");
    TORCH_CHECK(out_dtype == at::kBFloat16, "results are in bf16");
    TORCH_CHECK(scale_a.sizes() == at::IntArrayRef({m, 1}));
    TORCH_CHECK(scale_b.sizes() == at::IntArrayRef({1, n}));
    left = left * scale_a.cpu();
    right = right * scale_b.cpu();
  } else {
    TORCH_CHECK(scale_a.dim() == 0 && scale_b.dim() == 0);
    left = left * scale_a.cpu();
    right = right * scale_b.cpu();
  }
  ++abilities.num_products;
  return at::mm(left, right).to(*out_dtype).to(a.device());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("_scaled_mm", &scaled_mm);
}

AORecipeKwargs named(const char* name) {
  return {Float8LinearConfig::from_recipe_name(name)};
}

TERecipeKwargs te(bool has_blocks) {
  return {
      false,
      0,
      1,
      "HYBRID",
      4,
      "most_recent",
      OverrideLinearPrecision(),
      has_blocks};
}

struct Trained {
  Tensor output, grad_input, grad_weight;
};

struct Net {
  Net(const Float8Rules& rules, at::Device device, bool probes = true)
      : keeper(std::make_shared<Float8Keeper>(/*only_in_forwards=*/false)),
        layer(c10::make_intrusive<Float8Layer>("middle", rules)) {
    torch::manual_seed(7);
    linear = nn::Linear(nn::LinearOptions(48, 80).bias(false));
    // Same as Module::to(), which refuses this device.
    linear->weight = linear->weight.detach().to(device).requires_grad_();
    if (probes) layer->probe(device);
    layer->warn = [this](const std::string& text) { warnings.push_back(text); };
    const std::size_t unit = keeper->add(layer, {80, 48});
    watch_tensor(linear->weight, {keeper, unit, keeper.get()});
  }

  [[nodiscard]] Trained train(at::ScalarType dtype, std::int64_t rows) {
    const at::Device device = linear->weight.device();
    torch::manual_seed(11);
    const Tensor x =
        at::randn({rows, 48}).to(dtype).to(device).requires_grad_();
    const Tensor grad = at::randn({rows, 80}).to(dtype).to(device);
    linear->weight.mutable_grad().reset();
    const Tensor output = at::matmul(x, linear->weight.t());
    output.backward(grad);
    return {output.detach().cpu(), x.grad().cpu(), linear->weight.grad().cpu()};
  }

  std::shared_ptr<Float8Keeper> keeper;
  c10::intrusive_ptr<Float8Layer> layer;
  nn::Linear linear = nullptr;
  std::vector<std::string> warnings;
};

std::vector<Way> ways_of(const Float8Layer& layer) {
  return {layer.ways[0], layer.ways[1], layer.ways[2]};
}

void expect_close(
    const Tensor& found,
    const Tensor& expected,
    bool is_in_bfloat16 = false) {
  ASSERT_EQ(found.scalar_type(), expected.scalar_type());
  const double tolerance = is_in_bfloat16 ? 2e-2 : 1e-5;
  EXPECT_TRUE(at::allclose(found, expected, tolerance, tolerance))
      << (found - expected).abs().max();
}

class Float8ProductsOnDevice : public ::testing::Test {
 protected:
  void SetUp() override {
    abilities = {};
    c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
  }
  at::Device device = testing::pretend_device();
};

struct Case {
  std::string name;
  Float8Rules rules;
};

std::vector<Case> cases() {
  AORecipeKwargs wide = named("tensorwise");
  wide.config->input_dtype = Float8Type::e5m2;
  return {
      {"tensorwise", float8_rules_of(named("tensorwise"))},
      {"rowwise", float8_rules_of(named("rowwise"))},
      {"rowwise_with_gw_hp", float8_rules_of(named("rowwise_with_gw_hp"))},
      {"wide inputs", float8_rules_of(wide)},
      {"delayed", float8_rules_of(te(false))},
      {"blocks", float8_rules_of(te(true))}};
}

TEST_F(Float8ProductsOnDevice, GivesTheResultsOfEmulation) {
  for (const Case& each : cases()) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      SCOPED_TRACE(each.name + " " + c10::toString(dtype));
      // 33 rows, so the product for the weight's gradient is padded.
      const Trained expected = Net(each.rules, at::kCPU).train(dtype, 33);
      Net net(each.rules, device);
      abilities.num_products = 0;
      const Trained found = net.train(dtype, 33);
      EXPECT_GE(abilities.num_products, 2);
      EXPECT_THAT(net.warnings, ElementsAre());
      // The device's products with block scales are in bf16.
      const bool is_rough = dtype == at::kBFloat16 || each.name == "blocks";
      expect_close(found.output, expected.output, is_rough);
      expect_close(found.grad_input, expected.grad_input, is_rough);
      expect_close(found.grad_weight, expected.grad_weight, is_rough);
    }
  }
}

TEST_F(Float8ProductsOnDevice, IsTriedForEachProduct) {
  const auto found = [&](const Float8Rules& rules) {
    return ways_of(*Net(rules, device).layer);
  };
  const auto all = cases();
  for (const Case& each : all) {
    SCOPED_TRACE(each.name);
    if (each.name == "wide inputs") {
      // The weight's gradient is a product of two e5m2 tensors.
      EXPECT_THAT(
          found(each.rules),
          ElementsAre(Way::device, Way::device, Way::emulation));
    } else if (each.name == "rowwise_with_gw_hp") {
      EXPECT_THAT(
          found(each.rules),
          ElementsAre(Way::device, Way::device, Way::emulation));
    } else {
      EXPECT_THAT(
          found(each.rules),
          ElementsAre(Way::device, Way::device, Way::device));
    }
  }
  abilities.takes_scales_of_rows = false;
  EXPECT_THAT(
      found(all[1].rules),
      ElementsAre(
          Way::device_unscaled, Way::device_unscaled, Way::device_unscaled));
  abilities.takes_blocks = false;
  EXPECT_THAT(
      found(all[5].rules),
      ElementsAre(Way::emulation, Way::emulation, Way::emulation));
  abilities.multiplies = false;
  EXPECT_THAT(
      found(all[0].rules),
      ElementsAre(Way::emulation, Way::emulation, Way::emulation));
}

TEST_F(Float8ProductsOnDevice, ScalesResultsOfRowsAfterwardsWhereItMust) {
  abilities.takes_scales_of_rows = false;
  const Float8Rules rules = float8_rules_of(named("rowwise"));
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const Trained expected = Net(rules, at::kCPU).train(dtype, 40);
    const Trained found = Net(rules, device).train(dtype, 40);
    expect_close(found.output, expected.output, dtype == at::kBFloat16);
    expect_close(
        found.grad_weight, expected.grad_weight, dtype == at::kBFloat16);
  }
}

TEST_F(Float8ProductsOnDevice, EmulatesWhereTheDeviceHasNoFloat8) {
  abilities.multiplies = false;
  for (const Case& each : cases()) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      SCOPED_TRACE(each.name + " " + c10::toString(dtype));
      const Trained expected = Net(each.rules, at::kCPU).train(dtype, 33);
      const Trained found = Net(each.rules, device).train(dtype, 33);
      const bool is_rough = dtype == at::kBFloat16;
      expect_close(found.output, expected.output, is_rough);
      expect_close(found.grad_input, expected.grad_input, is_rough);
      expect_close(found.grad_weight, expected.grad_weight, is_rough);
    }
  }
}

TEST_F(Float8ProductsOnDevice, EmulatesAProductThatFailsLater) {
  const Float8Rules rules = float8_rules_of(named("tensorwise"));
  const Trained expected = Net(rules, at::kCPU).train(at::kFloat, 48);
  Net net(rules, device);
  // The gradient of the weight has 80 rows, the other products 48.
  abilities.most_rows = 64;
  EXPECT_THAT(
      ways_of(*net.layer), ElementsAre(Way::device, Way::device, Way::device));
  for (int i = 0; i < 2; ++i) {
    const Trained found = net.train(at::kFloat, 48);
    expect_close(found.grad_weight, expected.grad_weight);
    expect_close(found.grad_input, expected.grad_input);
  }
  EXPECT_THAT(
      net.warnings,
      ElementsAre(HasSubstr(
          "layer \"middle\": the gradient of the weight of [80, 48] times "
          "[48, 48] is emulated from now on, since the device cannot multiply "
          "it: too many rows")));
  EXPECT_THAT(
      ways_of(*net.layer),
      ElementsAre(Way::device, Way::device, Way::emulation));
}

TEST_F(Float8ProductsOnDevice, MultipliesMatricesOfDifferentGranularity) {
  const Tensor values = at::randn({32, 64});
  const Float8Matrix rows = cast_dynamically(
      values, {at::kFloat8_e4m3fn, Float8Granularity::axiswise}, 1);
  const Float8Matrix whole = cast_dynamically(values, {}, 1);
  const Float8Matrix blocks = cast_dynamically(
      values, {at::kFloat8_e4m3fn, Float8Granularity::blocks}, 1);
  const auto there = [&](const Float8Matrix& matrix) {
    return Float8Matrix{
        matrix.values.to(device), matrix.scale.to(device), matrix.block_dim};
  };
  for (const auto& [a, b] :
       {std::pair(rows, whole),
        std::pair(whole, rows),
        std::pair(blocks, whole),
        std::pair(rows, blocks)}) {
    const Tensor expected = multiply(a, b, at::kFloat, {Way::emulation});
    expect_close(
        multiply(there(a), there(b), at::kFloat, {Way::device}).cpu(),
        expected);
  }
}

// Counts operators that wait for the device to read a number.
struct WaitsCounted {
  WaitsCounted() {
    count() = 0;
    handle = at::addThreadLocalCallback(
        at::RecordFunctionCallback(
            [](const at::RecordFunction& function)
                -> std::unique_ptr<at::ObserverContext> {
              const std::string name = function.name();
              if (name == "aten::_local_scalar_dense" ||
                  name == "aten::is_nonzero")
                ++count();
              return nullptr;
            })
            .scopes({at::RecordScope::FUNCTION}));
  }
  ~WaitsCounted() { at::removeCallback(handle); }
  static int& count() {
    static thread_local int number = 0;
    return number;
  }
  at::RecordFunctionGuard guard;
  at::CallbackHandle handle = 0;
};

TEST_F(Float8ProductsOnDevice, DoesNotWaitForLargestValues) {
  for (const Case& each : cases()) {
    for (const bool is_random : {false, true}) {
      SCOPED_TRACE(each.name);
      Float8Rules rules = each.rules;
      rules.rounds_gradients_randomly = is_random;
      // Measures only the library's own work, not the pretended products.
      abilities.multiplies = false;
      Net net(rules, device);
      const WaitsCounted waits;
      static_cast<void>(at::ones({}, device).item<float>());
      const int before = waits.count();
      EXPECT_GT(before, 0);
      static_cast<void>(net.train(at::kFloat, 40));
      EXPECT_EQ(waits.count(), before);
    }
  }
}

TEST_F(Float8ProductsOnDevice, NotesLargestValuesThere) {
  Net net(float8_rules_of(te(false)), device);
  const Trained trained = net.train(at::kFloat, 40);
  torch::manual_seed(11);
  const float of_input = at::randn({40, 48}).abs().max().item<float>();
  const float of_grad = at::randn({40, 80}).abs().max().item<float>();
  const Tensor amaxes = take_amaxes(net.keeper->layers(), device);
  EXPECT_EQ(amaxes.device(), device);
  EXPECT_EQ(amaxes.sizes(), at::IntArrayRef({1, 3}));
  const Tensor found = amaxes.cpu();
  EXPECT_EQ(found[0][0].item<float>(), of_input);
  EXPECT_EQ(
      found[0][1].item<float>(),
      net.linear->weight.detach().cpu().abs().max().item<float>());
  EXPECT_EQ(found[0][2].item<float>(), of_grad);
  EXPECT_EQ(
      take_amaxes(net.keeper->layers(), device).cpu().max().item<float>(), 0);
  // The next forward uses the scale.
  net.layer->delayed[0]->update(of_input);
  EXPECT_EQ(
      net.layer->delayed[0]->scale_on(device).cpu().item<float>(),
      448 / of_input);
}

}  // namespace float8_products_device_test

}  // namespace accelerate::detail
