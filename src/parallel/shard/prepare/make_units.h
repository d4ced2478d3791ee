#pragma once

#include <memory>
#include <optional>
#include <vector>

#include <accelerate/parallel.h>

#include "parallel/disk/disk_shards.h"
#include "parallel/shard/float8_gather.h"
#include "parallel/shard/prepare/initial_values.h"
#include "parallel/shard/prepare/units.h"
#include "parallel/shard/shard.h"
#include "parallel/shard/shard_traffic.h"
#include "parallel/shard/shard_unit.h"

namespace accelerate::detail {

/// Whether the row is divided along the `expert` axis.
bool is_expert(const Parameter& row);

/// The units of a sharded model, and the traffic they refer to.
struct ShardUnits {
  std::unique_ptr<ShardTraffic> traffic;
  /// Null if no experts are divided.
  std::unique_ptr<ShardTraffic> expert_traffic;
  std::vector<std::unique_ptr<ShardUnit>> units;
  /// Set if weights are gathered in float8.
  std::optional<GatheredScales> scales;
};

/// The inputs of make_units. All but the pool must outlive the units.
struct UnitRequest {
  const Mesh& mesh;
  const ShardOptions& options;
  const MakeShardTraffic& make_traffic;
  /// Keeper of gated parameters, which it identifies by unit number.
  GateKeeper& keeper;
  /// Memory of full parameters.
  std::shared_ptr<BlockPool> pool;
  /// What lies in files; null: nothing.
  DiskShards* disk = nullptr;
};

/// Shards the rows of a plan: each rank keeps its own shards, initialized from
/// `values`. Collective among the ranks that share the model.
ShardUnits make_units(
    const UnitRequest& request,
    const torch::nn::Module& module,
    const UnitPlan& plan,
    const InitialValues& values,
    ParameterTable& table);

}  // namespace accelerate::detail
