// One small module per thing that an exported program can contain.
#include <string>
#include <tuple>

#include "exported/recorded_program.h"

namespace accelerate::testing::features_test {

/// A feature, and the version of PyTorch that exported its program.
using Feature = std::tuple<const char*, const char*>;

class RecordedFeature : public ::testing::TestWithParam<Feature> {
 protected:
  RecordedFeature()
      : name(std::get<0>(GetParam())),
        record(name),
        model(load_exported(program_path(name, std::get<1>(GetParam())))) {}

  ExportedOutputs run() {
    torch::manual_seed(1);
    std::vector<c10::IValue> inputs = record.inputs();
    if (name == "Numbers") inputs.emplace_back(3);
    return model->forward(std::move(inputs));
  }
  void expect_outputs(
      const ExportedOutputs& outputs,
      const std::string& prefix) {
    for (const std::string& index : record.names(prefix))
      expect_same(
          outputs[std::stoul(index)],
          record.at(prefix + index),
          prefix + index);
  }

  std::string name;
  Record record;
  ExportedModel model;

 private:
  OneThread one_thread_;
};

TEST_P(RecordedFeature, ComputesPythonsOutputsGradientsAndBuffers) {
  const ExportedOutputs outputs = run();
  expect_outputs(outputs, "output.");
  torch::Tensor sum;
  for (const torch::Tensor& output : outputs.tensors()) {
    if (!output.defined() || !output.requires_grad()) continue;
    sum = sum.defined() ? sum + output.sum() : output.sum();
  }
  sum.backward();
  const bool is_rounded = name == "Map";
  for (const auto& parameter : model->named_parameters()) {
    const std::string grad = "grad." + parameter.key();
    ASSERT_EQ(parameter.value().grad().defined(), record.contains(grad))
        << grad;
    if (!record.contains(grad)) continue;
    if (is_rounded) {
      // Python's map adds the rows' gradients in another order.
      EXPECT_TRUE(torch::allclose(
          parameter.value().grad(), record.at(grad), 1e-6, 1e-6))
          << grad;
    } else {
      expect_same(parameter.value().grad(), record.at(grad), grad);
    }
  }
  for (const auto& buffer : model->named_buffers())
    expect_same(
        buffer.value(), record.at("buffer." + buffer.key()), buffer.key());
}

TEST_P(RecordedFeature, ComputesPythonsOutputsInEval) {
  run();
  model->eval();
  expect_outputs(run(), "eval_output.");
}

std::string case_name(const ::testing::TestParamInfo<Feature>& tested) {
  const auto& [name, exporter] = tested.param;
  return std::string(name) + "_of_torch_" +
      (std::string(exporter) == "2.11" ? "2_11" : "2_15");
}

INSTANTIATE_TEST_SUITE_P(
    Exported,
    RecordedFeature,
    ::testing::Combine(
        ::testing::Values(
            "AssignedBuffer",
            "Autocast",
            "Branch",
            "Buffers",
            "CondOnData",
            "CondOnSize",
            "DataDependent",
            "Double",
            "Encoder",
            "Lists",
            "Map",
            "Nested",
            "NoGrad",
            "Norms",
            "Numbers",
            "RandomNumbers",
            "Scan",
            "Shared",
            "Sizes",
            "Tied",
            "WhileLoop"),
        ::testing::Values("2.11", "2.15")),
    case_name);

}  // namespace accelerate::testing::features_test
