// One small module per thing that an exported program can contain.
#include "exported/recorded_program.h"

namespace accelerate::testing::features_test {

class RecordedFeature : public ::testing::TestWithParam<const char*> {
 protected:
  RecordedFeature()
      : record(GetParam()), model(load_exported(program_path(GetParam()))) {
    torch::set_num_threads(1);  // as recorded
  }
  ~RecordedFeature() override { torch::set_num_threads(num_threads_); }

  ExportedOutputs run() {
    torch::manual_seed(1);
    std::vector<c10::IValue> inputs = record.inputs();
    if (std::string(GetParam()) == "Numbers") inputs.emplace_back(3);
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

  Record record;
  ExportedModel model;

 private:
  int num_threads_ = torch::get_num_threads();
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
  const bool is_rounded = std::string(GetParam()) == "Map";
  for (const auto& parameter : model->named_parameters()) {
    const std::string name = "grad." + parameter.key();
    ASSERT_EQ(parameter.value().grad().defined(), record.contains(name))
        << name;
    if (!record.contains(name)) continue;
    if (is_rounded) {
      // Python's map adds the rows' gradients in another order.
      EXPECT_TRUE(torch::allclose(
          parameter.value().grad(), record.at(name), 1e-6, 1e-6))
          << name;
    } else {
      expect_same(parameter.value().grad(), record.at(name), name);
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

INSTANTIATE_TEST_SUITE_P(
    Exported,
    RecordedFeature,
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
    [](const auto& tested) { return std::string(tested.param); });

}  // namespace accelerate::testing::features_test
