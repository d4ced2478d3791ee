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

/// A model, how it is divided, and on what.
struct LayoutCase {
  const ModelCosts& model;
  const TrainingLayout& layout;
  const LayoutPlanOptions& options;

  [[nodiscard]] const ClusterSpeeds& cluster() const {
    return *options.cluster;
  }
  /// Bytes of an element that is computed with.
  [[nodiscard]] double element_bytes() const {
    return options.precision == FloatType::fp32 ? 4 : 2;
  }
  /// Tokens of a micro-batch that one rank has.
  [[nodiscard]] double tokens() const {
    return static_cast<double>(layout.micro_batch) *
        static_cast<double>(options.sequence_length) / layout.context;
  }
  /// Ranks that read different data.
  [[nodiscard]] int data_ranks() const {
    return layout.replicate * layout.shard;
  }
  /// Each micro-batch's gradients travel, not only the last one's.
  [[nodiscard]] bool reduces_always() const {
    return layout.sharding == LayoutSharding::gradients ||
        layout.sharding == LayoutSharding::parameters;
  }
  /// Ranks that divide the parameters of experts, but for sharding.
  [[nodiscard]] double expert_divisor() const {
    return static_cast<double>(layout.tensor) * layout.expert;
  }
  /// Experts are sharded over what `expert` leaves of `shard`, and have the rest
  /// of the data ranks as replicas.
  [[nodiscard]] int expert_shard() const {
    return layout.expert <= layout.shard ? layout.shard / layout.expert : 1;
  }
  [[nodiscard]] int expert_replicate() const {
    return data_ranks() / layout.expert / expert_shard();
  }

  // Groups of ranks, by how far apart their members are.
  [[nodiscard]] RankGroup tensor_group() const { return {layout.tensor, 1}; }
  [[nodiscard]] RankGroup context_group() const {
    return {layout.context, layout.tensor};
  }
  [[nodiscard]] RankGroup expert_group() const {
    return {layout.expert, layout.tensor * layout.context};
  }
  [[nodiscard]] RankGroup shard_group() const {
    return {layout.shard, layout.tensor * layout.context};
  }
  [[nodiscard]] RankGroup expert_shard_group() const {
    return {expert_shard(), layout.tensor * layout.context * layout.expert};
  }
  /// Those that average the gradients of what the shard group divides.
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

/// Operators of a forward of one layer, besides those of communication.
inline constexpr double kLayerOperators = 18;

/// Operators of one expert.
inline constexpr double kExpertOperators = 4;

/// How often the logits are read or written in a forward: they are written, read
/// by the loss, and their gradients written.
inline constexpr double kLogitTouches = 3;

/// Bytes per parameter that a step of an optimizer reads and writes: each value
/// of its state and the parameter twice, the gradient once, and once more twice
/// for clipping.
double optimizer_bytes(const std::string& optimizer);

/// The layers that a rank computes together: a stage of a pipeline, or all.
struct LayerRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  bool has_embedding = false;
  bool has_head = false;
};

double optimizer_seconds(const LayoutCase& of, const LayerRange& layers);
/// Parameters of the layers that a rank steps on.
double stepped_parameters(const LayoutCase& of, const LayerRange& layers);
/// Parameters of the layers on this rank when all are gathered: those that every
/// token uses, and those of experts.
struct RankParameters {
  double dense = 0;
  double experts = 0;
};
RankParameters rank_parameters(const LayoutCase& of, const LayerRange& layers);

/// Adds the forward and the backward of one micro-batch to the program of the
/// rank. `reduces`: gradients travel during the backward.
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
/// Adds what follows the last backward: the optimizer, and parameters that
/// travel after it.
void add_step_end(
    RankPrograms& programs,
    const RankResources& rank,
    const LayoutCase& of,
    const LayerRange& layers);

}  // namespace accelerate::detail
