// Exported programs in stages: run one after another, they are the program.
#include <algorithm>
#include <functional>
#include <map>
#include <random>

#include <accelerate/error.h>
#include <gmock/gmock.h>

#include "exported/recorded_program.h"
#include "exported/stages/program_stages.h"
#include "laws/check.h"
#include "pipeline/exported_values.h"
#include "support/expect_error.h"

namespace accelerate::testing::program_stages_test {

using detail::ProgramStage;
using detail::ProgramStages;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Not;

const std::vector<std::string> kModels = {
    "bert",
    "cnn",
    "convnext",
    "BufferAbove",
    "gemma2",
    "gpt2",
    "llama",
    "lstm",
    "mistral",
    "llama_bf16",
    "llama_eager",
    "qwen3",
    "mixtral",
    "resnet",
    "swin",
    "t5",
    "unet",
    "vit"};

struct Result {
  std::vector<torch::Tensor> outputs;
  std::map<std::string, torch::Tensor> gradients;
  std::map<std::string, torch::Tensor> buffers;
  /// Slices were handed on, which the next stage has without what was between
  /// them. Kernels for such tensors round differently.
  bool had_gaps = false;
};

Result result_of(ExportedModel& model, std::vector<torch::Tensor> outputs) {
  Result result{std::move(outputs), {}, {}, false};
  for (const auto& item : model->named_parameters())
    if (item.value().grad().defined())
      result.gradients[item.key()] = item.value().grad();
  for (const auto& item : model->named_buffers())
    result.buffers[item.key()] = item.value().clone();
  return result;
}

torch::Tensor sum_of(const std::vector<torch::Tensor>& outputs) {
  torch::Tensor sum = torch::zeros({}, torch::kDouble);
  for (const auto& output : outputs)
    if (output.defined() && output.requires_grad())
      sum = sum + output.to(torch::kDouble).sum();
  return sum;
}

ExportedModel load(const std::string& name, bool is_training) {
  ExportedModel model = load_exported(program_path(name));
  model->train(is_training);
  return model;
}

Result run_whole(const std::string& name, bool is_training) {
  const OneThread one_thread;
  ExportedModel model = load(name, is_training);
  torch::manual_seed(1);
  auto outputs = model->forward(Record(name).inputs()).tensors();
  sum_of(outputs).backward();
  return result_of(model, outputs);
}

// As ranks of a pipeline do: what a stage gets has no graph, and its gradient
// is given back.
Result run_in_stages(
    const std::string& name,
    bool is_training,
    const std::function<std::vector<std::string>(const ExportedModel&)>&
        points_of) {
  const OneThread one_thread;
  ExportedModel model = load(name, is_training);
  auto stages = ProgramStages(*model).divide(points_of(model));
  torch::manual_seed(1);
  std::vector<c10::IValue> values = Record(name).inputs();
  std::vector<std::vector<torch::Tensor>> sent, received;
  bool had_gaps = false;
  for (std::size_t i = 0; i < stages.size(); ++i) {
    if (i > 0) {
      auto value = detail::stage_value(values);
      sent.emplace_back(), received.emplace_back();
      for (torch::Tensor& tensor : value.tensors) {
        if (!tensor.defined()) continue;
        had_gaps |= !tensor.is_non_overlapping_and_dense();
        const torch::Tensor leaf =
            tensor.detach().clone().requires_grad_(tensor.requires_grad());
        if (tensor.requires_grad())
          sent.back().push_back(tensor), received.back().push_back(leaf);
        tensor = leaf;
      }
      values = detail::program_values(value);
    }
    values = stages[i].program.run(std::move(values), is_training);
  }
  std::vector<torch::Tensor> outputs;
  for (const auto& value : values)
    outputs.push_back(detail::result_tensor(value));
  sum_of(outputs).backward();
  for (std::size_t i = sent.size(); i-- > 0;) {
    std::vector<torch::Tensor> gradients;
    for (const torch::Tensor& leaf : received[i])
      gradients.push_back(
          leaf.grad().defined() ? leaf.grad() : torch::zeros_like(leaf));
    if (!sent[i].empty()) torch::autograd::backward(sent[i], gradients);
  }
  Result result = result_of(model, outputs);
  result.had_gaps = had_gaps;
  return result;
}

// In every bit, unless slices were handed on.
void expect_equal(const Result& actual, const Result& expected) {
  const auto expect = [&](const torch::Tensor& a,
                          const torch::Tensor& b,
                          const std::string& name) {
    if (!actual.had_gaps) return expect_same(a, b, name);
    const double most = a.scalar_type() == torch::kBFloat16 ? 2e-2 : 1e-5;
    EXPECT_TRUE(a.allclose(b, most, most)) << name;
  };
  ASSERT_EQ(actual.outputs.size(), expected.outputs.size());
  for (std::size_t i = 0; i < actual.outputs.size(); ++i)
    if (expected.outputs[i].defined())
      expect(
          actual.outputs[i],
          expected.outputs[i].detach(),
          "output " + std::to_string(i));
  ASSERT_EQ(actual.gradients.size(), expected.gradients.size());
  for (const auto& [name, gradient] : expected.gradients) {
    ASSERT_TRUE(actual.gradients.contains(name)) << name;
    // Sums of more than two summands can have another order.
    EXPECT_TRUE(actual.gradients.at(name).allclose(gradient, 1e-5, 1e-6))
        << name;
  }
  for (const auto& [name, buffer] : expected.buffers)
    expect(actual.buffers.at(name), buffer, name);
}

TEST(ProgramStages, ThatBeginAtAllBlocksAreTheProgram) {
  for (const std::string& name : kModels) {
    for (const bool is_training : {true, false}) {
      SCOPED_TRACE(name + (is_training ? ", train()" : ", eval()"));
      expect_equal(
          run_in_stages(
              name,
              is_training,
              [](const ExportedModel& model) {
                const auto points = ProgramStages(*model).points();
                EXPECT_THAT(points, Not(IsEmpty()));
                return points;
              }),
          run_whole(name, is_training));
    }
  }
}

// Some of the points, in order: candidates are put wherever they fit.
std::vector<std::string>
some_points(const ExportedModel& model, std::size_t count, unsigned seed) {
  const ProgramStages stages(*model);
  const auto fits = [&](const std::vector<std::string>& points) {
    try {
      static_cast<void>(stages.divide(points));
      return true;
    } catch (const ConfigError&) {
      return false;
    }
  };
  std::vector<std::string> candidates, points;
  for (const auto& item : model->named_modules("", false))
    candidates.push_back(item.key());
  std::mt19937 random(seed);
  std::shuffle(candidates.begin(), candidates.end(), random);
  for (const std::string& candidate : candidates) {
    if (points.size() == count) break;
    for (std::size_t i = 0; i <= points.size(); ++i) {
      auto more = points;
      more.insert(more.begin() + static_cast<std::ptrdiff_t>(i), candidate);
      if (!fits(more)) continue;
      points = more;
      break;
    }
  }
  return points;
}

// The two halves of `gate_up_proj` have gaps between their rows.
TEST(ProgramStages, HandOnSlices) {
  const Result in_stages =
      run_in_stages("mixtral", /*is_training=*/false, [](const auto&) {
        return std::vector<std::string>{"model.layers.1.mlp.experts.act_fn"};
      });
  EXPECT_TRUE(in_stages.had_gaps);
  expect_equal(in_stages, run_whole("mixtral", false));
}

TEST(ProgramStagesLaw, ThatBeginAnywhereAreTheProgram) {
  expect_law(40, [] {
    const auto name = *rc::gen::elementOf(kModels);
    const auto is_training = *rc::gen::arbitrary<bool>();
    const auto count = *rc::gen::inRange<std::size_t>(1, 5);
    const auto seed = *rc::gen::arbitrary<unsigned>();
    const auto in_stages =
        run_in_stages(name, is_training, [&](const ExportedModel& model) {
          const auto points = some_points(model, count, seed);
          for (const std::string& point : points) RC_LOG() << point << " ";
          return points;
        });
    expect_equal(in_stages, run_whole(name, is_training));
    RC_ASSERT(!::testing::Test::HasFailure());
  });
}

std::vector<std::string> points_of(const std::string& program) {
  return ProgramStages(*load_exported(program_path(program))).points();
}

TEST(ProgramStages, BeginAtBlocks) {
  EXPECT_THAT(
      points_of("llama"),
      ElementsAre("model.layers.0", "model.layers.1", "model.norm", "lm_head"));
  EXPECT_THAT(
      points_of("gpt2"),
      ElementsAre(
          "net.transformer.wpe",
          "net.transformer.h.0",
          "net.transformer.h.1",
          "net.transformer.ln_f"));
  EXPECT_THAT(
      points_of("resnet"),
      ElementsAre(
          "resnet.encoder.stages.0",
          "resnet.encoder.stages.1",
          "classifier.1"));
  EXPECT_THAT(points_of("lstm"), ElementsAre("lstm", "head"));
}

std::vector<std::string> names_of(const ProgramStage& stage) {
  std::vector<std::string> names;
  for (const auto& [name, module] : stage.modules) names.push_back(name);
  return names;
}

TEST(ProgramStages, HaveTheModulesThatTheyUse) {
  ExportedModel model = load_exported(program_path("llama"));
  auto stages = ProgramStages(*model).divide({"model.layers.1"});
  EXPECT_EQ(stages[0].name, "model.embed_tokens");
  EXPECT_THAT(
      names_of(stages[0]),
      ElementsAre("model.embed_tokens", "model.rotary_emb", "model.layers.0"));
  EXPECT_THAT(
      names_of(stages[1]),
      ElementsAre("model.layers.1", "model.norm", "lm_head"));
  // A module that holds others stays together where it can.
  stages = ProgramStages(*model).divide({"lm_head"});
  EXPECT_THAT(names_of(stages[0]), ElementsAre("model"));
  EXPECT_THAT(names_of(stages[1]), ElementsAre("lm_head"));
}

TEST(ProgramStages, ShareTheOwnerOfATiedWeightAlone) {
  ExportedModel model = load_exported(program_path("gpt2"));
  const auto stages = ProgramStages(*model).divide({"net.lm_head"});
  EXPECT_THAT(names_of(stages[0]), Contains("net.transformer.wte"));
  EXPECT_THAT(
      names_of(stages[1]), ElementsAre("net.lm_head", "net.transformer.wte"));
}

TEST(ProgramStages, KeepWhatNothingUses) {
  ExportedModel model = load_exported(program_path("Tied"));
  const auto stages = ProgramStages(*model).divide({"frozen"});
  EXPECT_THAT(names_of(stages[0]), Contains("fc"));
  std::vector<std::string> all = names_of(stages[0]);
  for (const auto& name : names_of(stages[1])) all.push_back(name);
  EXPECT_THAT(all, Contains("unused"));
}

// Masks and rotary embeddings would be larger than what they are made of.
TEST(ProgramStages, ComputeMasksAgain) {
  ExportedModel model = load_exported(program_path("gemma2"));
  auto stages = ProgramStages(*model).divide({"model.layers.1"});
  const auto inputs = Record("gemma2").inputs();
  const auto values = stages[0].program.run(inputs, true);
  std::vector<std::vector<std::int64_t>> shapes;
  for (const auto& value : values)
    if (value.isTensor()) shapes.push_back(value.toTensor().sizes().vec());
  // The mask, the labels and the hidden states.
  const auto ids = inputs[0].toTensor().sizes().vec();
  EXPECT_THAT(
      shapes,
      ::testing::UnorderedElementsAre(
          ids, ids, std::vector<std::int64_t>{ids[0], ids[1], 16}));
}

void expect_refused(
    const std::string& program,
    const std::vector<std::string>& points,
    const std::string& phrase) {
  ExportedModel model = load_exported(program_path(program));
  expect_error<ConfigError>(
      [&] { static_cast<void>(ProgramStages(*model).divide(points)); }, phrase);
}

TEST(ProgramStages, RefuseSplitPointsThatCannotBeOnes) {
  expect_refused(
      "llama",
      {"model.layers.7"},
      "the split point 'model.layers.7' must be a module of the program, such "
      "as model.layers.0, model.layers.1");
  expect_refused(
      "llama",
      {"model.layers.1", "model.layers.0"},
      "'model.layers.0' must be called after 'model.layers.1', but is called "
      "before it");
  expect_refused(
      "llama",
      {"model.layers.1", "model.layers.1.input_layernorm"},
      "'model.layers.1.input_layernorm' must be called after "
      "'model.layers.1', but begins with the same operator");
  expect_refused(
      "llama",
      {"model.embed_tokens"},
      "must not be the first module that is called, with which the first "
      "stage begins, but is");
  const std::string outside =
      " must have an operator outside of control flow and autocast blocks, but "
      "has ";
  expect_refused("Tied", {"unused"}, "'unused'" + outside + "none");
  expect_refused("Map", {"fc"}, "'fc'" + outside + "none");
  expect_refused(
      "Autocast",
      {"fc"},
      "'fc'" + outside + "one only in torch.ops.higher_order.wrap_with_auto");
  expect_refused(
      "gpt2", {"net.transformer.wte"}, "must not be the first module");
  // What batch normalisation returned before is changed by add_ afterwards.
  expect_refused(
      "resnet",
      {"resnet.encoder.stages.1.layers.0.shortcut"},
      "must not come between a tensor and its change in place");
}

TEST(ProgramStages, HaveTheBuffersAboveThemThatTheyRead) {
  ExportedModel model = load_exported(program_path("BufferAbove"));
  const auto stages = ProgramStages(*model).divide({"layers.0", "layers.2"});
  std::vector<std::vector<std::string>> names;
  for (const ProgramStage& stage : stages) {
    names.emplace_back();
    for (const auto& [name, buffer] : stage.buffers) {
      names.back().push_back(name);
      EXPECT_TRUE(buffer.is_same(model->named_buffers()[name]));
    }
    EXPECT_THAT(stage.parameters, IsEmpty());
  }
  EXPECT_THAT(
      names,
      ElementsAre(
          ElementsAre("average"), ElementsAre("scale"), ElementsAre("scale")));
}

// The first stage would change it in train(), the last one read it in eval().
TEST(ProgramStages, RefuseBuffersThatOneStageChangesForAnother) {
  expect_refused(
      "EvaluatedBuffer",
      {"layers.1"},
      "a buffer that stages share must never change, but 'average' does");
  expect_refused(
      "EvaluatedBuffer", {"layers.0", "layers.2"}, "stages 0 and 2 use it");
}

TEST(StageValueLaw, ComesBackAsItWas) {
  expect_law(200, [] {
    std::vector<c10::IValue> values;
    const auto kinds =
        *rc::gen::container<std::vector<int>>(rc::gen::inRange(0, 5));
    for (const int kind : kinds) {
      const auto number = *rc::gen::arbitrary<std::int64_t>();
      if (kind == 0) values.emplace_back(number);
      if (kind == 1) values.emplace_back(*rc::gen::arbitrary<double>());
      if (kind == 2) values.emplace_back(number % 2 == 0);
      if (kind == 3) values.emplace_back(torch::full({2}, number));
      if (kind == 4) values.emplace_back(torch::Tensor());
    }
    const auto back = detail::program_values(detail::stage_value(values));
    RC_ASSERT(back.size() == values.size());
    for (std::size_t i = 0; i < values.size(); ++i) {
      RC_ASSERT(back[i].tagKind() == values[i].tagKind());
      if (!values[i].isTensor()) {
        RC_ASSERT(back[i] == values[i]);
      } else {
        RC_ASSERT(back[i].toTensor().is_same(values[i].toTensor()));
      }
    }
  });
}

}  // namespace accelerate::testing::program_stages_test
