// Layers of torch::nn whose weights are hooked, cast, offloaded or quantised,
// against the plain layer: every layer that has weights, inputs of 1 to 4
// dimensions, with and without bias and gradients, used more than once.

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/Parallel.h>
#include <torch/autograd.h>

#include <accelerate/activation_checkpointing.h>
#include <accelerate/big_model.h>
#include <accelerate/hooks.h>
#include <accelerate/layerwise_casting.h>
#include <accelerate/quantized_model.h>

#include "support/expect_error.h"
#include "support/temporary_directory.h"
#include "support/torch_layers.h"

namespace accelerate::layer_table_test {

namespace nn = torch::nn;
namespace layers = testing::layers;
using testing::LayerCase;
using testing::TemporaryDirectory;
using torch::Tensor;
using Forward = std::function<Tensor(const Tensor&)>;
using Tensors = std::vector<Tensor>;

// Operators on so few elements take longer on several threads.
class LayerTable : public ::testing::Test {
 protected:
  LayerTable() { at::set_num_threads(1); }
  ~LayerTable() override { at::set_num_threads(before_); }

 private:
  int before_ = at::get_num_threads();
};

Tensor loss_of(const Tensor& output) {
  return (output * layers::values(output.sizes().vec(), output.scalar_type()))
      .sum();
}

Tensors
gradients(const Tensor& loss, const Tensors& of, bool create_graph = false) {
  Tensors found = torch::autograd::grad(
      {loss},
      of,
      {},
      /*retain_graph=*/true,
      create_graph,
      /*allow_unused=*/true);
  for (Tensor& each : found)
    if (!each.defined()) each = torch::zeros({0});
  return found;
}

// Results of one use of a layer; nothing if LibTorch refuses it, as it refuses
// the second derivative of some layers.
struct Use {
  std::string name;
  std::optional<Tensors> results;
  std::string error;
};

// Uses a layer in all the ways that programs use one. Gradients are those of
// the input, unless it has integers, and of `parameters`.
std::vector<Use> uses_of(
    const Forward& forward,
    const Tensor& input,
    const Tensors& parameters) {
  const bool is_floating = input.is_floating_point();
  const auto leaf = [&] {
    Tensor x = input.detach().clone();
    return is_floating ? x.requires_grad_() : x;
  };
  const auto sources = [&](const Tensor& x) {
    Tensors all = parameters;
    if (is_floating) all.insert(all.begin(), x);
    return all;
  };
  const bool has_gradients = is_floating || !parameters.empty();
  std::vector<Use> uses;
  const auto use = [&](std::string name, const std::function<Tensors()>& run) {
    uses.push_back({std::move(name), std::nullopt, ""});
    try {
      uses.back().results = run();
    } catch (const std::exception& error) {
      uses.back().error = error.what();
    }
  };
  use("no_grad, then changed in place", [&]() -> Tensors {
    Tensor output;
    {
      const torch::NoGradGuard no_grad;
      output = forward(input);
    }
    const Tensor before = output.clone();
    return {before, output.mul_(2)};
  });
  use("inference", [&]() -> Tensors {
    const c10::InferenceMode inference;
    return {forward(input).clone()};
  });
  if (!has_gradients) return uses;
  use("backward twice, forward in between", [&] {
    const Tensor x = leaf();
    const Tensor output = forward(x);
    const Tensor loss = loss_of(output);
    Tensors results = gradients(loss, sources(x));
    results.push_back(forward(input.mul(1)));
    for (const Tensor& each : gradients(loss, sources(x)))
      results.push_back(each);
    results.push_back(output.detach().clone());
    return results;
  });
  use("changed in place", [&] {
    const Tensor x = leaf();
    Tensor output = forward(x);
    output.mul_(2).add_(1);
    Tensors results = gradients(loss_of(output), sources(x));
    results.push_back(output.detach().clone());
    return results;
  });
  use("viewed, activated in place", [&] {
    const Tensor x = leaf();
    const Tensor output = forward(x).flatten().relu_();
    return gradients(loss_of(output), sources(x));
  });
  use("recomputed", [&] {
    const Tensor x = leaf();
    const Tensor output = checkpoint([&] { return forward(x).sin(); });
    Tensors results = gradients(loss_of(output), sources(x));
    results.push_back(output.detach());
    return results;
  });
  use("second derivative", [&]() -> Tensors {
    if (!is_floating) return {};
    const Tensor x = leaf();
    const Tensor first =
        gradients(loss_of(forward(x).square()), {x}, true).front();
    return gradients(loss_of(first), {x});
  });
  return uses;
}

struct Tolerance {
  double relative = 1e-11;
  double absolute = 1e-12;
};

void expect_same_uses(
    const std::string& name,
    const std::vector<Use>& kept,
    const std::vector<Use>& plain,
    Tolerance tolerance = {}) {
  ASSERT_EQ(kept.size(), plain.size()) << name;
  for (std::size_t i = 0; i < plain.size(); ++i) {
    if (!plain[i].results) continue;
    ASSERT_TRUE(kept[i].results)
        << name << ", " << plain[i].name << ": " << kept[i].error;
    ASSERT_EQ(kept[i].results->size(), plain[i].results->size()) << name;
    for (std::size_t j = 0; j < plain[i].results->size(); ++j) {
      const Tensor& got = (*kept[i].results)[j];
      const Tensor& want = (*plain[i].results)[j];
      EXPECT_TRUE(
          got.sizes() == want.sizes() &&
          torch::allclose(
              got.to(want.scalar_type()),
              want,
              tolerance.relative,
              tolerance.absolute))
          << name << ", " << plain[i].name << ", result " << j << ": got\n"
          << got << "\ninstead of\n"
          << want;
    }
  }
}

Forward calls(const LayerCase& layer, std::shared_ptr<nn::Module> module) {
  return [forward = layer.forward, module](const Tensor& x) {
    return forward(*module, x);
  };
}

// Doubles a module's weights; optionally its first result three times.
struct DoublingHook : ModelHook {
  explicit DoublingHook(bool triples_result) : triples(triples_result) {}

  std::vector<Tensor> pre_forward(nn::Module&, std::vector<Tensor> inputs)
      override {
    ++num_before;
    return inputs;
  }
  Tensor prepare_weight(nn::Module&, const Tensor& weight) override {
    return weight * 2;
  }
  std::vector<Tensor> post_forward(nn::Module&, std::vector<Tensor> outputs)
      override {
    ++num_after;
    if (triples) outputs.front() = outputs.front() * 3;
    return outputs;
  }

  bool triples;
  int num_before = 0;
  int num_after = 0;
};

bool has_own_tensors(const nn::Module& module) {
  return !module.parameters(/*recurse=*/false).empty();
}

std::shared_ptr<DoublingHook> hook_all(nn::Module& module, bool triples) {
  auto hook = std::make_shared<DoublingHook>(triples);
  for (const auto& each : module.modules())
    if (has_own_tensors(*each)) add_hook_to_module(*each, hook);
  return hook;
}

void double_tensors(nn::Module& module) {
  const torch::NoGradGuard no_grad;
  for (Tensor& each : module.parameters()) each.mul_(2);
  for (Tensor& each : module.buffers())
    if (each.is_floating_point()) each.mul_(2);
}

void expect_doubled(const LayerCase& layer, bool triples) {
  const auto plain = layers::make(layer);
  if (plain->parameters().empty()) return;
  plain->eval();
  double_tensors(*plain);
  const auto hooked = layers::make(layer);
  hooked->eval();
  const auto hook = hook_all(*hooked, triples);
  const Forward forward = calls(layer, plain);
  const std::vector<Use> wanted = uses_of(
      [&](const Tensor& x) { return triples ? forward(x) * 3 : forward(x); },
      layer.input,
      {});
  expect_same_uses(
      layer.name, uses_of(calls(layer, hooked), layer.input, {}), wanted);
  EXPECT_EQ(hook->num_before, hook->num_after) << layer.name;
  const auto factor = triples ? 3 : 1;
  Tensors want;
  for (const Tensor& each :
       gradients(loss_of(forward(layer.input) * factor), plain->parameters()))
    want.push_back(each * 2);
  const Tensors got = gradients(
      loss_of(layer.forward(*hooked, layer.input)), hooked->parameters());
  for (std::size_t i = 0; i < want.size(); ++i)
    EXPECT_TRUE(torch::allclose(got[i], want[i])) << layer.name << i;
}

TEST_F(LayerTable, HooksSeeWeightsBiasesAndResultsOfEveryLayer) {
  for (const LayerCase& layer : layers::linear()) expect_doubled(layer, true);
  for (const LayerCase& layer : layers::others()) expect_doubled(layer, true);
  for (const LayerCase& layer : layers::attention())
    expect_doubled(layer, false);
}

TEST_F(LayerTable, HooksAreCalledOnceInAForward) {
  for (const auto& cases : {layers::linear(), layers::others()}) {
    for (const LayerCase& layer : cases) {
      const auto module = layers::make(layer);
      if (module->parameters().empty()) continue;
      module->eval();
      const auto hook = hook_all(*module, true);
      static_cast<void>(layer.forward(*module, layer.input).sum());
      EXPECT_EQ(hook->num_before, 1) << layer.name;
      EXPECT_EQ(hook->num_after, 1) << layer.name;
    }
  }
}

TEST_F(LayerTable, HooksOfAnOutputProjectionSeeItsResult) {
  for (const LayerCase& layer : layers::attention()) {
    const auto module = layers::make(layer);
    auto* const attention = module->as<nn::MultiheadAttentionImpl>();
    if (attention == nullptr) continue;
    const Tensor want = layer.forward(*module, layer.input) * 3;
    struct Tripling : DoublingHook {
      using DoublingHook::DoublingHook;
      Tensor prepare_weight(nn::Module&, const Tensor& weight) override {
        return weight;
      }
    };
    const auto hook = std::make_shared<Tripling>(true);
    add_hook_to_module(*attention->out_proj, hook);
    EXPECT_TRUE(torch::allclose(layer.forward(*module, layer.input), want))
        << layer.name;
    EXPECT_EQ(hook->num_after, 1) << layer.name;
  }
}

// A program may also multiply by the weight of a layer with a bias, without
// adding it.
TEST_F(LayerTable, HooksSeeProductsWithoutTheBiasOfTheirLayer) {
  nn::Linear linear(4, 4);
  linear->to(torch::kDouble);
  const auto hook = std::make_shared<DoublingHook>(true);
  const Tensor x = layers::values({2, 3, 4});
  const auto product = [&](const Tensor& input) {
    return torch::matmul(input, linear->weight.t());
  };
  const Tensor plain = product(x);
  add_hook_to_module(*linear, hook);
  const std::vector<std::pair<std::string, std::function<Tensor(Tensor)>>>
      continuations{
          {"unary", [](const Tensor& y) { return y.exp(); }},
          {"view", [](const Tensor& y) { return y.flatten(); }},
          {"added", [&](const Tensor& y) { return y + linear->bias; }},
          {"in place", [](Tensor y) { return y.mul_(2); }},
          {"another bias", [](Tensor y) { return y.add_(torch::ones({4})); }},
          {"bias times two",
           [&](Tensor y) { return y.add_(linear->bias.detach() * 1, 2); }},
          {"listed", [](const Tensor& y) { return torch::cat({y, y}); }},
          {"split", [](const Tensor& y) { return y.chunk(2, -1).front(); }},
          {"moved", [](const Tensor& y) { return y.to(torch::kFloat); }}};
  for (const auto& [name, then] : continuations) {
    const Tensor got = then(product(x));
    remove_hook_from_module(*linear);
    Tensor want = plain * 6;
    if (name == "added") {
      want = want + linear->bias * 2;
      add_hook_to_module(*linear, hook);
      // The addition alone is an operator with the module's bias: its result
      // is three times the sum.
      EXPECT_TRUE(torch::allclose(got, want * 3)) << name;
      continue;
    }
    EXPECT_TRUE(torch::allclose(got, then(want.clone()))) << name;
    add_hook_to_module(*linear, hook);
  }
  const Tensor unread = product(x);
  testing::expect_error<c10::Error>(
      [&] { unread.data_ptr(); }, "the result of a layer with a hook");
  EXPECT_TRUE(torch::allclose(unread, plain * 6));
  EXPECT_NE(unread.data_ptr(), nullptr);
}

TEST_F(LayerTable, HooksMayReturnOtherDtypesAndSizes) {
  struct Last : ModelHook {
    std::vector<Tensor> post_forward(nn::Module&, std::vector<Tensor> outputs)
        override {
      return {outputs.front().to(torch::kFloat).select(-2, 0)};
    }
  };
  nn::Linear linear(4, 6);
  linear->to(torch::kDouble);
  const Tensor x = layers::values({2, 3, 4}).requires_grad_();
  const Tensor want = linear(x).to(torch::kFloat).select(-2, 0);
  const Tensor gradient = gradients(loss_of(want), {x}).front();
  add_hook_to_module(*linear, std::make_shared<Last>());
  const Tensor got = linear(x);
  ASSERT_EQ(got.sizes(), want.sizes());
  EXPECT_EQ(got.scalar_type(), torch::kFloat);
  EXPECT_TRUE(got.equal(want));
  EXPECT_TRUE(gradients(loss_of(got), {x}).front().equal(gradient));
}

TEST_F(LayerTable, HooksWithoutGradientsRecordNone) {
  struct Frozen : ModelHook {
    [[nodiscard]] bool no_grad() const override { return true; }
  };
  nn::Linear linear(4, 6);
  add_hook_to_module(*linear, std::make_shared<Frozen>());
  const Tensor x = torch::ones({2, 3, 4}).requires_grad_();
  EXPECT_FALSE(linear(x).requires_grad());
  EXPECT_FALSE(linear(x[0]).requires_grad());
}

TEST_F(LayerTable, CastLayersComputeAsTheRoundedOnesDo) {
  std::vector<LayerCase> cases = layers::linear();
  for (const auto& more : {layers::attention(), layers::others()})
    cases.insert(cases.end(), more.begin(), more.end());
  for (const auto storage : {torch::kFloat, torch::kFloat8_e4m3fn}) {
    for (const LayerCase& layer : cases) {
      const auto plain = layers::make(layer);
      const auto cast = layers::make(layer);
      plain->eval();
      cast->eval();
      attach_layerwise_casting_hooks(*cast, storage, torch::kDouble);
      const Tensors stored = cast->parameters();
      const Tensors rounded = plain->parameters();
      for (std::size_t i = 0; i < stored.size(); ++i) {
        const torch::NoGradGuard no_grad;
        stored[i].set_requires_grad(false);
        rounded[i].set_requires_grad(false);
        Tensor(rounded[i]).copy_(stored[i].to(torch::kDouble));
      }
      expect_same_uses(
          layer.name,
          uses_of(calls(layer, cast), layer.input, {}),
          uses_of(calls(layer, plain), layer.input, {}));
    }
  }
}

TEST_F(LayerTable, OffloadedLayersComputeAsPlainOnesDo) {
  for (const LayerCase& layer : layers::all()) {
    const auto plain = layers::make(layer);
    const auto kept = layers::make(layer);
    for (const auto& module : {plain, kept}) {
      module->eval();
      for (const Tensor& each : module->parameters())
        each.set_requires_grad(false);
    }
    if (plain->parameters().empty()) continue;
    const TemporaryDirectory folder(TemporaryDirectory::memory());
    const Dispatch dispatch = dispatch_module(
        *kept,
        {.device_map = {{"", "disk"}},
         .offload_dir = folder.path(),
         .offload_buffers = true});
    expect_same_uses(
        layer.name,
        uses_of(calls(layer, kept), layer.input, {}),
        uses_of(calls(layer, plain), layer.input, {}));
  }
}

// A layer below a model that can be quantised.
struct HolderImpl : nn::Module {
  explicit HolderImpl(std::shared_ptr<nn::Module> made)
      : layer(register_module("layer", std::move(made))) {}
  std::shared_ptr<nn::Module> layer;
};

std::vector<LayerCase> layers_with_products() {
  std::vector<LayerCase> cases = layers::linear(torch::kFloat);
  for (const LayerCase& each : layers::attention(torch::kFloat))
    cases.push_back(each);
  return cases;
}

TEST_F(LayerTable, QuantizedLayersComputeAsDequantizedOnesDo) {
  const std::vector<std::string> none;
  const QuantizationOptions nf4{
      .load_in_4bit = true,
      .bnb_4bit_quant_type = "nf4",
      .bnb_4bit_compute_dtype = "fp32",
      .torch_dtype = "fp32",
      .skip_modules = none};
  QuantizationOptions fp4 = nf4;
  fp4.bnb_4bit_quant_type = "fp4";
  fp4.bnb_4bit_use_double_quant = true;
  const QuantizationOptions int8{
      .load_in_8bit = true, .torch_dtype = "fp32", .skip_modules = none};
  for (const QuantizationOptions& config : {nf4, fp4, int8}) {
    for (const LayerCase& layer : layers_with_products()) {
      HolderImpl plain(layers::make(layer, torch::kFloat));
      const auto kept =
          std::make_shared<HolderImpl>(layers::make(layer, torch::kFloat));
      const QuantizedModel quantized = load_and_quantize_model(*kept, config);
      auto parameters = plain.named_parameters();
      for (const std::string& name : quantized.module_names()) {
        const torch::NoGradGuard no_grad;
        parameters[name + ".weight"].copy_(
            quantized.weight(name).dequantize(torch::kFloat));
      }
      expect_same_uses(
          layer.name,
          uses_of(calls(layer, kept->layer), layer.input, {}),
          uses_of(calls(layer, plain.layer), layer.input, {}),
          {1e-4, 1e-4});
    }
  }
}

// LLM.int8() quantises rows, so that the dimensions above them do not matter.
TEST_F(LayerTable, QuantizedInputsAreRowsWhateverTheirShape) {
  for (const LayerCase& layer : layers::linear(torch::kFloat)) {
    const auto kept =
        std::make_shared<HolderImpl>(layers::make(layer, torch::kFloat));
    const QuantizedModel quantized = load_and_quantize_model(
        *kept,
        {.load_in_8bit = true,
         .torch_dtype = "fp32",
         .skip_modules = std::vector<std::string>(),
         .llm_int8_quantize_inputs = true});
    const Forward forward = calls(layer, kept->layer);
    std::vector<std::int64_t> sizes = layer.input.sizes().vec();
    sizes.back() = 6;
    expect_same_uses(
        layer.name,
        uses_of(forward, layer.input, {}),
        uses_of(
            [&](const Tensor& x) {
              return forward(x.reshape({-1, 4})).reshape(sizes);
            },
            layer.input,
            {}),
        {1e-5, 1e-6});
  }
}

}  // namespace accelerate::layer_table_test
