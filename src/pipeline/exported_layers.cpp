#include "pipeline/exported_layers.h"

#include <memory>
#include <utility>

#include "exported/stages/program_stages.h"
#include "pipeline/exported_values.h"

namespace accelerate::detail {

namespace {

// A layer that runs a part of a program.
class ExportedLayer final : public DividedProgram {
 public:
  ExportedLayer(
      std::shared_ptr<ExportedModelImpl> model,
      ProgramStage stage,
      bool is_first,
      bool is_last)
      : model_(std::move(model)),
        stage_(std::move(stage)),
        is_first_(is_first),
        is_last_(is_last) {}

  PipelineValue forward(const PipelineValue& value) {
    const torch::nn::Module& root = stage_.mode ? *stage_.mode : *model_;
    const auto results = stage_.program.run(
        is_first_ ? program_inputs(value, model_->input_names())
                  : program_values(value),
        root.is_training());
    return is_last_ ? program_results(results, model_->output_names())
                    : stage_value(results);
  }

  [[nodiscard]] bool is_embedding(const at::Tensor& parameter) const override {
    return stage_.program.training.is_embedding(parameter);
  }
  [[nodiscard]] ParallelizePlan own_plan() const override {
    return model_->tensor_parallel_plan();
  }
  std::vector<at::Tensor> divide(
      const std::vector<DividedParameter>& parameters,
      int rank) override {
    return stage_.program.divide(parameters, rank);
  }
  void set_full(bool is_full) override { stage_.program.set_full(is_full); }

 private:
  std::shared_ptr<ExportedModelImpl> model_;
  ProgramStage stage_;
  bool is_first_;
  bool is_last_;
};

}  // namespace

std::vector<std::string> exported_split_points(const ExportedModel& model) {
  return ProgramStages(*model).points();
}

PipelineLayers exported_layers(
    const ExportedModel& model,
    const std::vector<std::string>& split_points) {
  auto stages = ProgramStages(*model).divide(split_points);
  PipelineLayers layers;
  for (std::size_t i = 0; i < stages.size(); ++i) {
    const ProgramStage stage = stages[i];
    const auto layer = std::make_shared<ExportedLayer>(
        model.ptr(),
        std::move(stages[i]),
        /*is_first=*/i == 0,
        /*is_last=*/i + 1 == stages.size());
    layers.add(PipelineLayer{
        .name = stage.name,
        .modules = stage.modules,
        .parameters = stage.parameters,
        .forward =
            [layer](const PipelineValue& value) {
              return layer->forward(value);
            },
        .buffers = stage.buffers,
        .program = layer});
  }
  return layers;
}

}  // namespace accelerate::detail
