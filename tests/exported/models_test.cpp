// Models of Hugging Face and of PyTorch, exported by Python, compute here what they compute there.
#include <cmath>
#include <functional>
#include <optional>

#include <ATen/autocast_mode.h>

#include "exported/recorded_program.h"

namespace accelerate::testing::models_test {

struct Model {
  const char* name;
  /// Exported and recorded under autocast.
  bool has_autocast = false;
  /// The version of PyTorch that exported it.
  std::string exporter = "2.11";
};

void PrintTo(const Model& model, std::ostream* out) {
  *out << model.name << " of PyTorch " << model.exporter;
}

class AutocastIn {
 public:
  explicit AutocastIn(bool is_enabled)
      : was_(at::autocast::is_autocast_enabled(at::kCPU)) {
    at::autocast::set_autocast_enabled(at::kCPU, is_enabled);
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
  }
  AutocastIn(const AutocastIn&) = delete;
  AutocastIn& operator=(const AutocastIn&) = delete;
  ~AutocastIn() {
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, was_);
  }

 private:
  bool was_;
};

class RecordedModel : public ::testing::TestWithParam<Model> {
 protected:
  RecordedModel()
      : record(GetParam().name),
        model(
            load_exported(program_path(GetParam().name, GetParam().exporter))) {
  }

  ExportedOutputs run(const std::string& prefix, int seed = 1) {
    const AutocastIn autocast(GetParam().has_autocast);
    torch::manual_seed(seed);
    return model->forward(record.inputs(prefix));
  }

  // Under autocast in the forward alone.
  torch::Tensor loss_of(const std::string& prefix) {
    const AutocastIn autocast(GetParam().has_autocast);
    return testing::loss_of(model->forward(record.inputs(prefix)));
  }

  std::vector<double> losses(torch::optim::Optimizer& optimizer) {
    torch::manual_seed(2);
    std::vector<double> found;
    for (std::size_t step = 0; step < record.numbers("sgd").size(); ++step) {
      optimizer.zero_grad();
      const auto loss = loss_of(step % 2 == 0 ? "input." : "other.");
      loss.backward();
      optimizer.step();
      found.push_back(loss.item<float>());
    }
    return found;
  }

  Record record;
  ExportedModel model;

 private:
  OneThread one_thread_;
};

TEST_P(RecordedModel, ComputesPythonsLogits) {
  expect_same(
      logits_of(run("input.")).to(torch::kFloat),
      record.at("logits"),
      "logits");
  expect_same(
      logits_of(run("other.")).to(torch::kFloat),
      record.at("other_logits"),
      "logits of another shape");
}

TEST_P(RecordedModel, ComputesPythonsLogitsInEval) {
  model->eval();
  expect_same(
      logits_of(run("other.")).to(torch::kFloat),
      record.at("eval_logits"),
      "logits in eval()");
}

TEST_P(RecordedModel, HasPythonsLossesInTwentyStepsOfSgd) {
  torch::optim::SGD sgd(model->parameters(), 0.05);
  const auto found = losses(sgd);
  if (record.contains("program_sgd")) {
    // Python's own run of the program rounds gradients in another order, too.
    EXPECT_EQ(found, record.numbers("program_sgd"));
    expect_near(found, record.numbers("sgd"), 2e-3);
  } else {
    EXPECT_EQ(found, record.numbers("sgd"));
  }
  for (const auto& buffer : model->named_buffers()) {
    if (record.contains("buffer." + buffer.key()))
      expect_same(
          buffer.value(), record.at("buffer." + buffer.key()), buffer.key());
  }
}

TEST_P(RecordedModel, HasPythonsLossesInTwentyStepsOfAdamW) {
  torch::optim::AdamW adamw(
      model->parameters(), torch::optim::AdamWOptions(1e-3).weight_decay(0.01));
  // LibTorch's AdamW rounds in another order than Python's.
  const bool is_bf16 = GetParam().has_autocast ||
      model->parameters().front().scalar_type() == torch::kBFloat16;
  expect_near(losses(adamw), record.numbers("adamw"), is_bf16 ? 2e-3 : 2e-6);
}

const char* const kModels[] = {
    "bert",
    "clip",
    "cnn",
    "convnext",
    "encoder_context",
    "gemma2",
    "gpt2",
    "gpt2_context",
    "llama",
    "llama_bf16",
    "llama_context",
    "llama_eager",
    "llama_in_bf16",
    "lstm",
    "mistral",
    "mixtral",
    "qwen3",
    "resnet",
    "swin",
    "t5",
    "unet",
    "vit",
    "whisper",
};

std::vector<Model> models() {
  std::vector<Model> models;
  for (const char* const name : kModels) {
    const bool has_autocast = std::string(name) == "llama_bf16";
    for (const char* const exporter : {"2.11", "2.15"}) {
      if (std::filesystem::exists(program_path(name, exporter)))
        models.push_back({name, has_autocast, exporter});
    }
  }
  return models;
}

INSTANTIATE_TEST_SUITE_P(
    Exported,
    RecordedModel,
    ::testing::ValuesIn(models()),
    [](const auto& tested) {
      return std::string(tested.param.name) + "_of_torch_" +
          (tested.param.exporter == "2.11" ? "2_11" : "2_15");
    });

}  // namespace accelerate::testing::models_test
