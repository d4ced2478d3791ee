#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include <ATen/core/ScalarType.h>

#include <accelerate/parallel.h>
#include <accelerate/world.h>

#include "engines/training_request.h"
#include "parallel/strategy.h"

namespace accelerate::detail {

/// The resolved options of sharding.
struct ShardOptions {
  ModuleSelection units = {};
  /// A regular expression; modules whose name it matches stay unsharded.
  std::optional<std::string> ignored_modules = std::nullopt;
  /// Whole parameters come and go; else only gradients and optimizer state are
  /// split, and each step's result is gathered (ZeRO-1 and 2).
  bool frees_parameters = true;
  /// They go after their last use in a forward (ZeRO-3); else after a backward.
  bool frees_after_forward = true;
  /// Above 1: from then to the backward they stay split over so many
  /// neighbouring ranks, who gather them faster.
  int reshard_group_size = 0;
  /// Gradients are reduced in every micro-step, so that none stay whole.
  bool reduces_every_backward = false;
  /// The next unit is gathered while the present one computes.
  bool prefetches = true;
  /// Number of units gathered ahead.
  std::size_t prefetch_depth = 1;
  /// In a backward only when the present unit's gradients are complete: less
  /// memory.
  bool prefetches_after_gradients = false;
  bool broadcast_buffers = true;
  /// LibTorch's allocator keeps freed memory of full parameters, so sharding
  /// need not.
  bool allocator_keeps_blocks = false;
  /// Parts, with their gradients and optimizer state, are in host memory, and
  /// optimizers step there. On the CPU they are there anyway.
  bool offloads_shards = false;
  /// The dtype of full parameters; unset: as they are.
  std::optional<at::ScalarType> param_dtype = std::nullopt;
  /// Gradients travel in it; unset: as they are.
  std::optional<at::ScalarType> reduce_dtype = std::nullopt;
  /// The dtype of floating buffers; unset: as they are.
  std::optional<at::ScalarType> buffer_dtype = std::nullopt;
  /// The dtype of what a forward returns; unset: as it is.
  std::optional<at::ScalarType> output_dtype = std::nullopt;
  /// Parts of bf16 and fp16 parameters are in fp32, even without param_dtype,
  /// with which those that are trained are in any case.
  bool master_weights = false;
};

class BlockPool;
class ShardTraffic;

/// Makes what carries a model's shards, on all ranks at once. `reshard_group`:
/// the ranks that may keep a replica among themselves, or one rank. `pool`:
/// memory of full parameters, to be shared.
using MakeShardTraffic = std::function<std::unique_ptr<ShardTraffic>(
    const Mesh& mesh,
    const Group& reshard_group,
    const std::shared_ptr<BlockPool>& pool)>;

/// HostShardTraffic.
std::unique_ptr<ShardTraffic> make_host_traffic(
    const Mesh& mesh,
    const Group& reshard_group,
    const std::shared_ptr<BlockPool>& pool);

/// Fully sharded data parallel: each rank keeps some rows of every parameter,
/// with their gradients and optimizer state; units of parameters are gathered
/// just before they are read (gate/) and gradients are reduced to the parts as
/// they are complete. (Rajbhandari et al., "ZeRO: Memory Optimizations Toward
/// Training Trillion Parameter Models", SC 2020; Zhao et al., "PyTorch FSDP:
/// Experiences on Scaling Fully Sharded Data Parallel", VLDB 2023.)
std::unique_ptr<Strategy> make_shard(
    const Mesh& mesh,
    const ShardOptions& options);
/// The same, over other traffic than the hosts' messages.
std::unique_ptr<Strategy> make_shard(
    const Mesh& mesh,
    const ShardOptions& options,
    const MakeShardTraffic& make_traffic);

}  // namespace accelerate::detail
