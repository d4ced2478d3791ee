// The module that load_exported() makes: names, classes, modes, memory, devices.
#include <algorithm>
#include <functional>
#include <set>

#include <gmock/gmock.h>

#include <accelerate/error.h>

#include "exported/recorded_program.h"
#include "params/materialize.h"
#include "support/expect_error.h"
#include "support/temporary_directory.h"

namespace accelerate::testing::module_test {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

std::vector<std::string> keys_of(
    const torch::OrderedDict<std::string, torch::Tensor>& tensors) {
  std::vector<std::string> keys;
  for (const auto& item : tensors) keys.push_back(item.key());
  return keys;
}

std::string class_of(torch::nn::Module& root, const std::string& name) {
  for (const auto& item : root.named_modules()) {
    if (item.key() == name) return item.value()->name();
  }
  return "no such module";
}

torch::Tensor rows(std::int64_t count) {
  torch::manual_seed(3);
  return torch::randn({count, 8});
}

TEST(ExportedModule, HasPythonsNamesAndClasses) {
  auto model = load_exported(program_path("llama"));
  EXPECT_EQ(model->name(), "LlamaForCausalLM");
  EXPECT_EQ(class_of(*model, "model.layers"), "ModuleList");
  EXPECT_EQ(class_of(*model, "model.layers.1"), "LlamaDecoderLayer");
  EXPECT_EQ(class_of(*model, "model.layers.1.self_attn.q_proj"), "Linear");
  EXPECT_EQ(class_of(*model, "model.layers.1.mlp.act_fn"), "SiLUActivation");
  EXPECT_THAT(
      keys_of(model->named_parameters()),
      Contains("model.layers.1.mlp.down_proj.weight"));
  EXPECT_EQ(
      keys_of(model->named_parameters()).front(), "model.embed_tokens.weight");
  EXPECT_EQ(keys_of(model->named_parameters()).back(), "lm_head.weight");
  EXPECT_THAT(
      model->input_names(),
      ElementsAre("input_ids", "attention_mask", "labels"));
  EXPECT_THAT(model->output_names(), ElementsAre("loss", "logits"));
}

TEST(ExportedModule, HasATiedParameterUnderItsFirstNameOnly) {
  auto model = load_exported(program_path("Tied"));
  EXPECT_THAT(
      keys_of(model->named_parameters()),
      ElementsAre(
          "fc.weight",
          "fc.bias",
          "frozen.weight",
          "frozen.bias",
          "unused.weight",
          "unused.bias",
          "tied.bias"));
  for (const auto& item : model->named_parameters())
    EXPECT_EQ(item.value().requires_grad(), !item.key().starts_with("frozen"));
}

TEST(ExportedModule, KeepsConstantsAndHiddenBuffersOutOfTheStateDict) {
  auto model = load_exported(program_path("Buffers"));
  EXPECT_THAT(keys_of(model->named_buffers()), ElementsAre("average", "steps"));
}

TEST(ExportedModule, NamesNestedInputsAndOutputs) {
  auto model = load_exported(program_path("Nested"));
  EXPECT_THAT(
      model->input_names(),
      ElementsAre("inputs.a", "inputs.b.0", "inputs.b.1"));
  EXPECT_THAT(
      model->output_names(),
      ElementsAre("h", "pair.0", "pair.1.0", "pair.1.1", "n"));
  const auto x = rows(4);
  const ExportedOutputs outputs = model->forward(x, x, x);
  EXPECT_EQ(outputs["n"].item<std::int64_t>(), 7);
  EXPECT_FALSE(outputs["pair.1.1"].defined());
  EXPECT_EQ(outputs.size(), 5);
}

TEST(ExportedModule, TakesInputsByName) {
  auto model = load_exported(program_path("Nested"));
  const auto a = rows(4), b = rows(4) + 1, c = rows(4) * 2;
  const auto by_place = model->forward(a, b, c);
  const auto by_name = model->forward(
      ExportedInputs{{"inputs.b.1", c}, {"inputs.a", a}, {"inputs.b.0", b}});
  expect_same(by_name["pair.0"], by_place["pair.0"].detach(), "pair.0");
  expect_error<ConfigError>(
      [&] { model->forward(ExportedInputs{{"inputs.a", a}}); },
      "the inputs must be inputs.a, inputs.b.0, inputs.b.1, but are inputs.a");
  expect_error<ConfigError>(
      [&] { model->forward(a, b); },
      "must get 3 inputs (inputs.a, inputs.b.0, inputs.b.1), but gets 2");
  expect_error<ConfigError>(
      [&] { static_cast<void>(by_name["missing"]); },
      "must be one of h, pair.0, pair.1.0, pair.1.1, n, but is 'missing'");
  expect_error<ConfigError>(
      [&] { static_cast<void>(by_name[5]); },
      "the index of a result must be below 5, but is 5");
}

TEST(ExportedModule, ChecksSizesAtTheDoor) {
  auto model = load_exported(program_path("Nested"));
  expect_error<ConfigError>(
      [&] { model->forward(rows(33), rows(33), rows(33)); },
      "dimension 0 of input 'inputs.a' must be 2 to 32, for which the model "
      "was "
      "exported, but is 33");
  expect_error<ConfigError>(
      [&] { model->forward(rows(4), rows(5), rows(4)); },
      "dimension 0 of 'inputs.a' is 4, dimension 0 of 'inputs.b.0' is 5");
  expect_error<ConfigError>(
      [&] { model->forward(rows(4).flatten(), rows(4), rows(4)); },
      "input 'inputs.a' must have 2 dimensions, but has 1");
  expect_error<ConfigError>(
      [&] { model->forward(torch::ones({4, 7}), rows(4), rows(4)); },
      "dimension 1 of input 'inputs.a' must be 8, for which the model was "
      "exported, but is 7");
}

TEST(ExportedModule, SwitchesASubmoduleAloneToEval) {
  auto model = load_exported(program_path("cnn"));
  const Record record("cnn");
  for (const auto& item : model->named_modules()) {
    if (item.value()->name() == "BatchNorm2d") item.value()->eval();
  }
  const auto before = model->named_buffers()["stem.1.running_mean"].clone();
  torch::manual_seed(1);
  const auto first = model->forward(record.inputs())[0];
  const auto second = model->forward(record.inputs())[0];
  EXPECT_FALSE(torch::equal(first, second)) << "dropout is on";
  EXPECT_TRUE(
      torch::equal(model->named_buffers()["stem.1.running_mean"], before));
  EXPECT_EQ(
      model->named_buffers()["stem.1.num_batches_tracked"].item<std::int64_t>(),
      0);
}

TEST(ExportedModule, RefusesOtherDtypesAndClones) {
  auto model = load_exported(program_path("Tied"));
  expect_error<ConfigError>(
      [&] { model->to(torch::kBFloat16); },
      "the dtype of 'fc.weight' must stay Float, but is to become BFloat16");
  expect_error<ConfigError>(
      [&] { model->children().front()->to(torch::kCPU, torch::kHalf); },
      "Convert the model in Python, and export it again");
  expect_error<ConfigError>(
      [&] { static_cast<void>(model->clone()); }, "call load_exported() again");
  model->to(torch::kFloat);
}

TEST(ExportedModule, RunsOnTheDeviceOfItsWeights) {
  // Weights on meta: constants and tensors that the program makes are, too.
  auto model = load_exported(program_path("Buffers"), {.weights = false});
  for (const auto& item : model->named_parameters())
    EXPECT_TRUE(item.value().is_meta()) << item.key();
  EXPECT_TRUE(model->forward(rows(4).to(torch::kMeta))[0].is_meta());
  // Constants have kept their values meanwhile.
  auto full = load_exported(program_path("Buffers"));
  const torch::NoGradGuard no_grad;
  const auto fill = [](const torch::Tensor& tensor,
                       const torch::Tensor& values) {
    detail::materialize(tensor, torch::kCPU);
    tensor.copy_(values);
  };
  for (const auto& item : model->named_parameters())
    fill(item.value(), full->named_parameters()[item.key()]);
  for (const auto& item : model->named_buffers())
    fill(item.value(), full->named_buffers()[item.key()]);
  expect_same(model->forward(rows(4))[0], full->forward(rows(4))[0], "output");
}

TEST(ExportedModule, NamesModuleAndSourceLineOfAFailedOperator) {
  auto model = load_exported(program_path("Tied"));
  try {
    model->forward(rows(4).to(torch::kInt));
    ADD_FAILURE() << "integers were accepted";
  } catch (const c10::Error& error) {
    EXPECT_THAT(
        error.what(),
        HasSubstr("while running torch.ops.aten.linear.default of 'fc' "));
    EXPECT_THAT(error.what(), HasSubstr("make_exported_programs.py:"));
    EXPECT_THAT(
        error.what(), HasSubstr("return self.tied(self.frozen(self.fc(x)))"));
  }
}

TEST(ExportedModule, NeverWritesToItsFile) {
  const TemporaryDirectory directory;
  const auto path = directory / "model.pt2";
  std::filesystem::copy_file(program_path("Tied"), path);
  {
    auto model = load_exported(path);
    const torch::NoGradGuard no_grad;
    for (auto& parameter : model->parameters()) parameter.fill_(7);
  }
  auto model = load_exported(path),
       original = load_exported(program_path("Tied"));
  for (const auto& item : model->named_parameters())
    expect_same(
        item.value(),
        original->named_parameters()[item.key()].detach(),
        item.key());
}

TEST(ExportedModule, DescribesAProgram) {
  const ExportedDescription description =
      inspect_exported(program_path("llama"));
  EXPECT_THAT(description.unsupported, ElementsAre());
  EXPECT_TRUE(description.has_weights);
  EXPECT_FALSE(description.has_evaluation);
  EXPECT_EQ(description.classes.at("LlamaDecoderLayer"), 2U);
  EXPECT_EQ(description.operators.at("aten.linear.default"), 15U);
  ASSERT_EQ(description.inputs.size(), 3U);
  EXPECT_EQ(description.inputs[0].dtype, "int64");
  EXPECT_THAT(description.inputs[0].sizes, ElementsAre("1 to 64", "3 to 64"));
  std::int64_t count = 0;
  for (const auto& parameter :
       load_exported(program_path("llama"))->parameters())
    count += parameter.numel();
  EXPECT_EQ(description.num_parameters, count);
  EXPECT_EQ(inspect_exported(program_path("llama_bf16")).autocast, "bfloat16");
  EXPECT_EQ(
      load_exported(program_path("llama_bf16"))->autocast_dtype(),
      torch::kBFloat16);
}

}  // namespace accelerate::testing::module_test
