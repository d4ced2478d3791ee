#include <cstdint>
#include <string>

#include "planning/layout/layer_program.h"
#include "planning/training_memory.h"

namespace accelerate::detail {

RankParameters rank_parameters(const LayoutCase& of, const LayerRange& layers) {
  RankParameters parameters;
  for (std::int64_t i = layers.begin; i < layers.end; ++i) {
    const LayerCosts& layer = of.model.layer(i);
    parameters.dense += layer.dense_parameters / of.layout.tensor;
    parameters.experts += layer.expert_parameters / of.expert_divisor();
  }
  if (layers.has_embedding)
    parameters.dense += of.model.embedding_parameters / of.layout.tensor;
  if (layers.has_head) {
    const bool has_own = of.model.head_parameters > 0 || !layers.has_embedding;
    if (has_own)
      parameters.dense += of.model.embedding_parameters / of.layout.tensor;
  }
  return parameters;
}

double stepped_parameters(const LayoutCase& of, const LayerRange& layers) {
  const RankParameters parameters = rank_parameters(of, layers);
  if (of.layout.sharding == LayoutSharding::none)
    return parameters.dense + parameters.experts;
  return parameters.dense / of.layout.shard +
      parameters.experts / of.expert_shard();
}

double optimizer_bytes(const std::string& optimizer) {
  const auto state = static_cast<double>(optimizer_state_bytes(optimizer));
  return 2 * state + 2 * 4 + 4 * 4;
}

double optimizer_seconds(const LayoutCase& of, const LayerRange& layers) {
  const ClusterSpeeds& cluster = of.cluster();
  double tensors = layers.has_embedding ? 1 : 0;
  if (layers.has_head) tensors += 1;
  for (std::int64_t i = layers.begin; i < layers.end; ++i)
    tensors += of.model.layer(i).tensors;
  return tensors * cluster.measured.seconds_per_stepped_parameter +
      stepped_parameters(of, layers) * optimizer_bytes(of.options.optimizer) /
      (cluster.optimizer_bytes_per_second > 0
           ? cluster.optimizer_bytes_per_second
           : cluster.memory_bytes_per_second);
}

}  // namespace accelerate::detail
