#pragma once

#include <memory>
#include <optional>
#include <vector>

#include <accelerate/parallel.h>

#include "parallel/shard/float8_gather.h"
#include "parallel/shard/prepare/initial_values.h"
#include "parallel/shard/prepare/units.h"
#include "parallel/shard/shard.h"
#include "parallel/shard/shard_traffic.h"
#include "parallel/shard/shard_unit.h"

namespace accelerate::detail {

/// Whether ranks divide the row along `expert`.
bool is_expert(const Parameter& row);

/// The units of a sharded model, and the traffic that they refer to.
struct ShardUnits {
  std::unique_ptr<ShardTraffic> traffic;
  /// Null if no experts are divided.
  std::unique_ptr<ShardTraffic> expert_traffic;
  std::vector<std::unique_ptr<ShardUnit>> units;
  /// Set if weights travel in float8.
  std::optional<GatheredScales> scales;
};

/// What units are made with. All but the pool must outlive them.
struct UnitRequest {
  const Mesh& mesh;
  const ShardOptions& options;
  const MakeShardTraffic& make_traffic;
  /// Keeps gated parameters, which it knows by the number of their unit.
  GateKeeper& keeper;
  /// Memory of full parameters.
  std::shared_ptr<BlockPool> pool;
};

/// Shards the rows of a plan: each rank keeps its own, with `values`. Collective
/// among the ranks that share the model.
ShardUnits make_units(
    const UnitRequest& request,
    const torch::nn::Module& module,
    const UnitPlan& plan,
    const InitialValues& values,
    ParameterTable& table);

}  // namespace accelerate::detail
