#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include <ATen/core/ScalarType.h>

#include <accelerate/parallel.h>
#include <accelerate/world.h>

#include "engines/training_request.h"
#include "parallel/shard/float8_gather.h"
#include "parallel/strategy.h"

namespace accelerate::detail {

/// The resolved options of sharding.
struct ShardOptions {
  ModuleSelection units = {};
  /// A regular expression; modules whose full name matches stay unsharded.
  std::optional<std::string> ignored_modules = std::nullopt;
  /// Parameters are sharded and gathered for each use. If false, only gradients
  /// and optimizer state are sharded, and parameters are gathered after each
  /// step (ZeRO-1 and 2).
  bool shards_parameters = true;
  /// Full parameters are resharded after their last use in a forward (ZeRO-3).
  /// If false, after a backward.
  bool reshards_after_forward = true;
  /// Above 1: between forward and backward, parameters are sharded over groups
  /// of that many consecutive ranks, which gather them faster.
  int reshard_group_size = 0;
  /// Gradients are reduced in every micro-step, so that none stay unsharded.
  bool reduces_every_backward = false;
  /// The next unit is gathered while the current one computes.
  bool prefetches_forward = true;
  bool prefetches_backward = true;
  /// Number of units gathered ahead.
  std::size_t prefetch_depth = 1;
  /// A backward prefetches only when the current unit's gradients are complete,
  /// which saves memory.
  bool prefetches_after_gradients = false;
  bool broadcast_buffers = true;
  /// Dtype in which gradients are averaged over replicas of the shards; unset:
  /// unchanged.
  std::optional<at::ScalarType> replica_dtype = std::nullopt;
  /// Size of the messages in which those gradients are sent.
  std::int64_t message_bytes = 25 << 20;
  /// LibTorch's allocator keeps freed memory of full parameters, so sharding
  /// does not need to.
  bool allocator_keeps_blocks = false;
  /// Shards, with their gradients and optimizer state, are in host memory, and
  /// optimizers step there. Has no effect on the CPU.
  bool offloads_shards = false;
  /// What lies in files between its uses; unset: nothing.
  std::optional<DiskRequest> disk = std::nullopt;
  /// Dtype of full parameters; unset: unchanged.
  std::optional<at::ScalarType> param_dtype = std::nullopt;
  /// Dtype in which gradients are reduced; unset: unchanged.
  std::optional<at::ScalarType> reduce_dtype = std::nullopt;
  /// Dtype of floating buffers; unset: unchanged.
  std::optional<at::ScalarType> buffer_dtype = std::nullopt;
  /// Dtype of a forward's floating outputs; unset: unchanged.
  std::optional<at::ScalarType> output_dtype = std::nullopt;
  /// A forward's floating inputs are cast to param_dtype.
  bool casts_inputs = true;
  /// Weights that are gathered in float8 if parameters are sharded; unset:
  /// none.
  std::optional<Float8Gather> float8 = std::nullopt;
  /// Shards of bf16 and fp16 parameters are in fp32. With param_dtype, shards
  /// of those that are trained always are.
  bool master_weights = false;
};

class BlockPool;
class ShardTraffic;

/// Makes a model's traffic. Collective. `reshard_group`: the ranks that keep a
/// replica among themselves between forward and backward; empty if there are
/// none. `pool`: memory of full parameters, to be shared.
using MakeShardTraffic = std::function<std::unique_ptr<ShardTraffic>(
    const Mesh& mesh,
    const Group& reshard_group,
    const std::shared_ptr<BlockPool>& pool)>;

/// Makes a DeviceShardTraffic if the ranks' devices are connected, else a
/// HostShardTraffic. The same on all ranks of the world.
std::unique_ptr<ShardTraffic> make_shard_traffic(
    const Mesh& mesh,
    const Group& reshard_group,
    const std::shared_ptr<BlockPool>& pool);
/// Makes a HostShardTraffic.
std::unique_ptr<ShardTraffic> make_host_traffic(
    const Mesh& mesh,
    const Group& reshard_group,
    const std::shared_ptr<BlockPool>& pool);

/// Fully sharded data parallel: each rank keeps some rows of every parameter,
/// with their gradients and optimizer state; units of parameters are gathered
/// just before they are read (gate/), and gradients are reduced to the shards
/// as they become complete. (Rajbhandari et al., "ZeRO: Memory Optimizations
/// Toward Training Trillion Parameter Models", SC 2020; Zhao et al., "PyTorch
/// FSDP: Experiences on Scaling Fully Sharded Data Parallel", VLDB 2023.)
std::unique_ptr<Strategy> make_shard(
    const Mesh& mesh,
    const ShardOptions& options);
/// Makes a single-process stand-in that shards nothing, and only rejects what
/// several processes would reject.
std::unique_ptr<Strategy> make_shard_of_one(const ShardOptions& options);
/// Returns the reasons why some functions cannot be used with a sharded model.
StrategyTraits refusals_of_shard();
/// Makes a shard as above, with other traffic.
std::unique_ptr<Strategy> make_shard(
    const Mesh& mesh,
    const ShardOptions& options,
    const MakeShardTraffic& make_traffic);

}  // namespace accelerate::detail
