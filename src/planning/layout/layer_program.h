#pragma once

#include <cstdint>
#include <string>

#include <accelerate/planning.h>

#include "planning/layout/collective_costs.h"
#include "planning/layout/model_costs.h"
#include "planning/simulation/programs.h"

namespace accelerate::detail {

/// Names of messages in LayoutTimes.
namespace traffic {
inline constexpr const char* kTensor = "tensor";
inline constexpr const char* kContext = "context";
inline constexpr const char* kExperts = "experts";
inline constexpr const char* kParameters = "parameters";
inline constexpr const char* kGradients = "gradients";
inline constexpr const char* kPipeline = "pipeline";
}  // namespace traffic

/// A model, its layout, and the cluster it runs on.
struct LayoutCase {
  const ModelCosts& model;
  const TrainingLayout& layout;
  const LayoutPlanOptions& options;

  [[nodiscard]] const ClusterSpeeds& cluster() const {
    return *options.cluster;
  }
  /// Bytes per element in the compute precision.
  [[nodiscard]] double element_bytes() const {
    return options.precision == FloatType::fp32 ? 4 : 2;
  }
  /// Tokens of a micro-batch per rank.
  [[nodiscard]] double tokens() const {
    return static_cast<double>(layout.micro_batch) *
        static_cast<double>(options.sequence_length) / layout.context;
  }
  /// Ranks that read different data.
  [[nodiscard]] int data_ranks() const {
    return layout.replicate * layout.shard;
  }
  /// Gradients are reduced after every micro-batch, not only after the last.
  [[nodiscard]] bool reduces_always() const {
    return layout.sharding == LayoutSharding::gradients || gathers_parameters();
  }
  /// Full parameters come and go.
  [[nodiscard]] bool gathers_parameters() const {
    return layout.sharding == LayoutSharding::parameters || layout.on_disk;
  }
  /// Number of ranks that divide the experts' parameters, sharding aside.
  [[nodiscard]] double expert_divisor() const {
    return static_cast<double>(layout.tensor) * layout.expert;
  }
  /// Experts are sharded over the part of `shard` that `expert` leaves; the
  /// remaining data ranks hold replicas.
  [[nodiscard]] int expert_shard() const {
    return layout.expert <= layout.shard ? layout.shard / layout.expert : 1;
  }
  [[nodiscard]] int expert_replicate() const {
    return data_ranks() / layout.expert / expert_shard();
  }

  // Groups of ranks, by how far apart their members are.
  [[nodiscard]] RankGroup tensor_group() const { return {layout.tensor, 1}; }
  [[nodiscard]] RankGroup expert_group() const {
    return {layout.expert, layout.tensor * layout.context};
  }
  [[nodiscard]] RankGroup shard_group() const {
    return {layout.shard, layout.tensor * layout.context};
  }
  [[nodiscard]] RankGroup expert_shard_group() const {
    return {expert_shard(), layout.tensor * layout.context * layout.expert};
  }
  /// Ranks that average the gradients of parameters sharded over shard_group().
  [[nodiscard]] RankGroup replica_group() const {
    return {
        layout.replicate * layout.context,
        layout.tensor * (layout.context > 1 ? 1 : layout.shard)};
  }
  [[nodiscard]] RankGroup expert_replica_group() const {
    return {
        expert_replicate() * layout.context,
        layout.tensor *
            (layout.context > 1 ? 1 : expert_shard() * layout.expert)};
  }
  [[nodiscard]] int pipeline_stride() const {
    return layout.num_ranks() / layout.pipeline;
  }
};

/// Operators in the forward of one layer, excluding communication.
inline constexpr double kLayerOperators = 18;

/// Operators of one expert.
inline constexpr double kExpertOperators = 4;

/// How often a forward reads or writes the logits: they are written, read by
/// the loss, and their gradients are written.
inline constexpr double kLogitTouches = 3;

/// Bytes per parameter that an optimizer step reads and writes: each value of
/// its state and the parameter twice, the gradient once, plus three times to
/// clip it.
double optimizer_bytes(const std::string& optimizer);

/// The layers that a rank computes together: a pipeline stage, or all layers.
struct LayerRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  bool has_embedding = false;
  bool has_head = false;
};

double optimizer_seconds(const LayoutCase& of, const LayerRange& layers);
/// Number of parameters of the layers that a rank's optimizer steps on.
double stepped_parameters(const LayoutCase& of, const LayerRange& layers);
/// Number of parameters of the layers on this rank when all are gathered: those
/// that every token uses, and those of experts.
struct RankParameters {
  double dense = 0;
  double experts = 0;
};
RankParameters rank_parameters(const LayoutCase& of, const LayerRange& layers);

/// Adds the forward or the backward of one micro-batch to the program of the
/// rank. `reduces`: gradients are reduced during the backward.
void add_forward(
    RankPrograms& programs,
    const RankResources& rank,
    const LayoutCase& of,
    const LayerRange& layers);
void add_backward(
    RankPrograms& programs,
    const RankResources& rank,
    const LayoutCase& of,
    const LayerRange& layers,
    bool reduces);
/// Adds what follows the last backward: the optimizer step, and the gathering
/// of parameters after it.
void add_step_end(
    RankPrograms& programs,
    const RankResources& rank,
    const LayoutCase& of,
    const LayerRange& layers);

}  // namespace accelerate::detail
