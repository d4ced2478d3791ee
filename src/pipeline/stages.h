#pragma once

#include <cstddef>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <accelerate/pipeline_layers.h>

#include "planning/pipeline/schedule.h"

namespace accelerate::detail {

/// The module of a pipeline's rank: those of its layers, under their names in
/// the whole model, so that its parameters have the whole model's names.
class PipelineStageModule final : public torch::nn::Module {
 public:
  explicit PipelineStageModule(std::string class_name)
      : torch::nn::Module(std::move(class_name)) {}

  /// All layers under their names; null if it is not known. Not a submodule.
  std::shared_ptr<const torch::nn::Module> whole_model;
};

/// A parameter that several ranks of a pipeline have.
struct TiedParameter {
  /// Its first name in the whole model, which it has on all of these ranks.
  std::string name;
  at::Tensor tensor;  ///< undefined on other ranks
  /// In the order of the stages; the first one saves and counts it.
  std::vector<int> ranks;
};

/// A model that is divided among the ranks of a pipeline, as one of them sees
/// it.
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

/// The bytes of each layer's parameters; a parameter that several layers use
/// counts in the first. Layers of a model without parameters cost 1 each.
std::vector<double> parameter_bytes(const std::vector<PipelineLayer>& layers);

/// How many layers are modules of the class that most of them have: a
/// transformer's blocks, without its embedding and head.
std::size_t num_repeated_layers(const std::vector<PipelineLayer>& layers);

/// The first layer of each stage of the schedule if its last rank has
/// `of_last_rank` of the repeated layers and the other ranks equally many of the
/// rest; layers before and after the repeated ones belong to the first and the
/// last stage. Throws ConfigError if they cannot be divided so.
std::vector<std::size_t> begins_with_last_rank(
    const std::vector<PipelineLayer>& layers,
    const PipelineStagePlaces& places,
    int of_last_rank);

/// Divides the layers; `begins` is the index of each stage's first layer. Throws
/// ConfigError for two modules, or a module and a tensor, of one name.
PipelineStages make_stages(
    const std::vector<PipelineLayer>& layers,
    const std::vector<std::size_t>& begins,
    const PipelineStagePlaces& places,
    int rank);

/// A module of all layers under their names.
std::shared_ptr<PipelineStageModule> make_whole_module(
    const std::vector<PipelineLayer>& layers);

/// Frees the memory of parameters and buffers of the layers that are not in the
/// rank's module: they become meta tensors, in place.
void free_other_stages(
    const std::vector<PipelineLayer>& layers,
    const PipelineStageModule& module);

}  // namespace accelerate::detail
