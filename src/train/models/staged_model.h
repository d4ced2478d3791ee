#pragma once

#include <memory>

#include <torch/nn/module.h>

#include <accelerate/pipeline_layers.h>

#include "pipeline/stages.h"
#include "train/session/prepared.h"

namespace accelerate::detail {

/// `whole`: all layers under their names.
std::shared_ptr<const StagedModel> make_staged_model(
    const PipelineStages& stages,
    std::shared_ptr<torch::nn::Module> whole,
    int rank);

/// The full model as seen by readers of shards: tensors of other stages are
/// sharded, and this rank has empty shards of them.
struct WholeModel {
  std::shared_ptr<torch::nn::Module> module;
  ParameterTable table;
  const Mesh* mesh = nullptr;

  [[nodiscard]] PlacedModel placed() const {
    return {module.get(), &table, mesh};
  }
};

/// Null for a model that is not divided into stages. Collective.
std::unique_ptr<const WholeModel> whole_model(const PreparedModel& model);

}  // namespace accelerate::detail
