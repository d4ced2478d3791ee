#pragma once

#include <cstddef>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <accelerate/exported_model.h>
#include <accelerate/pipeline_layers.h>

#include "planning/pipeline/schedule.h"

namespace accelerate::detail {

/// The module of a pipeline rank: holds the modules of its layers under their
/// names in the whole model, so its parameters have the whole model's names.
class PipelineStageModule : public torch::nn::Module {
 public:
  explicit PipelineStageModule(std::string class_name)
      : torch::nn::Module(std::move(class_name)) {}

  /// All layers under their names; null if unknown. Not a submodule.
  std::shared_ptr<const torch::nn::Module> whole_model;
};

/// The module of a pipeline rank whose layers run parts of an exported program.
class ProgramStageModule final : public PipelineStageModule,
                                 public DividedProgram {
 public:
  /// `programs`: those of its layers, at least one.
  ProgramStageModule(
      std::string class_name,
      std::vector<std::shared_ptr<DividedProgram>> programs)
      : PipelineStageModule(std::move(class_name)),
        programs_(std::move(programs)) {}

  [[nodiscard]] bool is_embedding(const at::Tensor& parameter) const override;
  [[nodiscard]] ParallelizePlan own_plan() const override;
  std::vector<at::Tensor> divide(
      const std::vector<DividedParameter>& parameters,
      int rank) override;
  void set_full(bool is_full) override;

 private:
  std::vector<std::shared_ptr<DividedProgram>> programs_;
};

/// A parameter shared by several ranks of a pipeline.
struct TiedParameter {
  /// Its first name in the whole model, which it has on all of these ranks.
  std::string name;
  at::Tensor tensor;  ///< undefined on other ranks
  /// Ranks in stage order; the first one saves and counts it.
  std::vector<int> ranks;
};

/// One rank's view of a model that is divided among the ranks of a pipeline.
struct PipelineStages {
  std::shared_ptr<PipelineStageModule> module;
  /// The layers of each of this rank's chunks.
  std::vector<std::vector<PipelineLayer>> chunks;
  std::vector<TiedParameter> tied;
  /// Names of parameters and buffers that only other ranks have.
  std::set<std::string> elsewhere;
  /// The names of each stage's layers.
  std::vector<std::vector<std::string>> layers;
};

/// Returns the bytes of each layer's parameters; a parameter that several
/// layers use counts for the first. In a model without parameters, each layer
/// costs 1.
std::vector<double> parameter_bytes(const std::vector<PipelineLayer>& layers);

/// Returns the number of layers of the most common class: a transformer's
/// blocks, without its embedding and head.
std::size_t num_repeated_layers(const std::vector<PipelineLayer>& layers);

/// Returns the first layer of each stage if the last rank has `of_last_rank` of
/// the repeated layers and the other ranks share the rest equally; layers
/// before and after the repeated ones belong to the first and the last stage.
/// Throws ConfigError if they cannot be divided like this.
std::vector<std::size_t> begins_with_last_rank(
    const std::vector<PipelineLayer>& layers,
    const PipelineStagePlaces& places,
    int of_last_rank);

/// Divides the layers; `begins` is the index of each stage's first layer.
/// Throws ConfigError for two modules, or a module and a tensor, with the same
/// name.
PipelineStages make_stages(
    const std::vector<PipelineLayer>& layers,
    const std::vector<std::size_t>& begins,
    const PipelineStagePlaces& places,
    int rank);

/// Makes a module of all layers under their names.
std::shared_ptr<PipelineStageModule> make_whole_module(
    const std::vector<PipelineLayer>& layers);

/// Frees the memory of parameters and buffers of the layers that are not in the
/// rank's module: they become meta tensors, in place.
void free_other_stages(
    const std::vector<PipelineLayer>& layers,
    const PipelineStageModule& module);

}  // namespace accelerate::detail
