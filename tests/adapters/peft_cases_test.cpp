// Adapters that Python's PEFT wrote, and what it computed with them
// (tools/make_adapter_cases.py).
#include <algorithm>
#include <fstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include <accelerate/adapters.h>
#include <accelerate/error.h>
#include <accelerate/exported_model.h>
#include <accelerate/safetensors.h>
#include <accelerate/weights.h>

#include "adapters/mixed_net.h"
#include "exported/recorded_program.h"
#include "support/expect_error.h"
#include "support/temporary_directory.h"

namespace accelerate::testing::peft_cases_test {

using nlohmann::json;

std::filesystem::path case_path(const std::string& name) {
  return std::filesystem::path(ACCELERATE_ADAPTER_CASES) / name;
}

std::map<std::string, torch::Tensor> record_of(const std::string& name) {
  return load_state_dict(case_path(name) / "record.safetensors");
}

json config_in(const std::filesystem::path& directory) {
  std::ifstream file(directory / "adapter_config.json");
  return json::parse(file);
}

// Where results differ by the order in which numbers are added.
void expect_close(
    const torch::Tensor& actual,
    const torch::Tensor& expected,
    const std::string& what) {
  ASSERT_EQ(actual.sizes(), expected.sizes()) << what;
  EXPECT_TRUE(torch::allclose(actual, expected, 1e-5, 2e-6))
      << what << " differs by "
      << (actual - expected).abs().max().item<double>();
}

/// The model of a case.
class CaseModel {
 public:
  explicit CaseModel(const std::string& name) {
    if (name.starts_with("llama") || name.starts_with("gpt2")) {
      exported_ = load_exported(
          program_path(name.starts_with("llama") ? "llama" : "gpt2"));
    } else {
      mixed_ = MixedNet();
      load_model(*mixed_, case_path("mixed.safetensors"));
    }
    is_always_in_eval_ = name.starts_with("gpt2");
  }

  torch::nn::Module& operator*() const {
    if (mixed_) return *mixed_;
    return *exported_;
  }
  void train(bool on) const { (**this).train(on && !is_always_in_eval_); }

  struct Result {
    torch::Tensor output, loss;
  };
  [[nodiscard]] Result run(
      const std::map<std::string, torch::Tensor>& record) const {
    std::vector<c10::IValue> inputs;
    for (int i = 0; record.contains("input." + std::to_string(i)); ++i)
      inputs.emplace_back(record.at("input." + std::to_string(i)));
    if (mixed_) {
      const torch::Tensor output = mixed_.get()->forward(inputs[0].toTensor());
      return {output, output.square().mean()};
    }
    const ExportedOutputs outputs = exported_.get()->forward(inputs);
    return {logits_of(outputs), loss_of(outputs)};
  }

 private:
  mutable MixedNet mixed_ = nullptr;
  mutable ExportedModel exported_ = nullptr;
  bool is_always_in_eval_ = false;
};

std::vector<torch::Tensor> trained_parameters(torch::nn::Module& net) {
  std::vector<torch::Tensor> trained;
  for (const torch::Tensor& each : net.parameters())
    if (each.requires_grad()) trained.push_back(each);
  return trained;
}

class PeftCase : public ::testing::TestWithParam<const char*> {};

TEST_P(PeftCase, ComputesWhatPeftComputes) {
  const CaseModel net(GetParam());
  const auto record = record_of(GetParam());
  load_adapters(*net, case_path(GetParam()));
  net.train(false);
  expect_close(net.run(record).output, record.at("output"), "output");
}

TEST_P(PeftCase, TrainsAsPeftDoes) {
  const CaseModel net(GetParam());
  const auto record = record_of(GetParam());
  load_adapters(*net, case_path(GetParam()), "default", {.is_trainable = true});
  net.train(true);
  torch::manual_seed(2);
  torch::optim::SGD sgd(trained_parameters(*net), 0.1);
  const torch::Tensor losses = record.at("sgd");
  for (int step = 0; step < losses.size(0); ++step) {
    sgd.zero_grad();
    const torch::Tensor loss = net.run(record).loss;
    loss.backward();
    sgd.step();
    const double expected = losses[step].item<double>();
    EXPECT_NEAR(loss.item<double>(), expected, 3e-6 * (1 + expected))
        << "step " << step;
  }
  const TemporaryDirectory directory;
  save_adapters(*net, directory.path());
  const auto saved = load_state_dict(directory / "adapter_model.safetensors");
  for (const auto& [name, tensor] : saved) {
    ASSERT_TRUE(record.contains("trained." + name)) << name;
    expect_close(tensor, record.at("trained." + name), name);
  }
}

TEST_P(PeftCase, SavesWhatPeftSaves) {
  const CaseModel net(GetParam());
  load_adapters(*net, case_path(GetParam()), "mine");
  const TemporaryDirectory directory;
  save_adapters(*net, directory.path(), "mine");
  json expected = config_in(case_path(GetParam()));
  json actual = config_in(directory.path());
  const auto sort_names = [](json& config) {
    json& names = config["target_modules"];
    if (names.is_array()) std::sort(names.begin(), names.end());
  };
  sort_names(expected);
  sort_names(actual);
  // The class of the Python program's model.
  expected.erase("auto_mapping");
  actual.erase("auto_mapping");
  EXPECT_EQ(actual, expected);
  const auto saved = load_state_dict(directory / "adapter_model.safetensors");
  auto theirs =
      load_state_dict(case_path(GetParam()) / "adapter_model.safetensors");
  // PEFT also writes the embedding itself.
  theirs.erase("base_model.model.model.embed_tokens.base_layer.weight");
  ASSERT_EQ(saved.size(), theirs.size());
  for (const auto& [name, tensor] : theirs) {
    ASSERT_TRUE(saved.contains(name)) << name;
    EXPECT_TRUE(torch::equal(saved.at(name), tensor)) << name;
  }
}

TEST_P(PeftCase, ComputesTheSameMerged) {
  const CaseModel net(GetParam());
  const auto record = record_of(GetParam());
  load_adapters(*net, case_path(GetParam()));
  net.train(false);
  if (std::string(GetParam()) == "gpt2_tied") {
    static_cast<void>(net.run(record));
    expect_error<ConfigError>(
        [&] { merge_adapters(*net); },
        "the weight of \"net.transformer.wte\" must not be tied, but the "
        "program also computes something else with it");
    return;
  }
  merge_adapters(*net);
  expect_close(net.run(record).output, record.at("output"), "merged");
  unmerge_adapters(*net);
  expect_close(net.run(record).output, record.at("output"), "unmerged");
  merge_and_unload(*net);
  expect_close(net.run(record).output, record.at("output"), "unloaded");
  EXPECT_TRUE(adapter_names(*net).empty());
}

INSTANTIATE_TEST_SUITE_P(
    Recorded,
    PeftCase,
    ::testing::Values(
        "linear",
        "kinds",
        "rslora",
        "dora",
        "dropout",
        "dora_dropout",
        "patterns",
        "bias",
        "bias_all",
        "saved",
        "llama",
        "llama_all",
        "llama_layer",
        "llama_embed",
        "gpt2",
        "gpt2_tied"),
    [](const auto& each) { return std::string(each.param); });

TEST(PeftInitialValues, AreThoseOfTheSameSeed) {
  MixedNet net;
  torch::manual_seed(5);
  add_adapters(net, {.rank = 4, .target_modules = kKinds});
  const TemporaryDirectory directory;
  save_adapters(net, directory.path());
  const auto actual = load_state_dict(directory / "adapter_model.safetensors");
  const auto expected =
      load_state_dict(case_path("initial") / "adapter_model.safetensors");
  ASSERT_EQ(actual.size(), expected.size());
  for (const auto& [name, tensor] : expected)
    EXPECT_TRUE(torch::equal(actual.at(name), tensor)) << name;
}

}  // namespace accelerate::testing::peft_cases_test
