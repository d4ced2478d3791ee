#pragma once

#include <memory>
#include <vector>

#include <accelerate/parallel.h>
#include <accelerate/world.h>

#include "parallel/shard/reduction/host_reduction.h"
#include "parallel/shard/shard_traffic.h"
#include "parallel/shard/unshard/block_pool.h"
#include "parallel/shard/unshard/host_unshard.h"

namespace accelerate::detail {

/// Sends shards as tagged messages between host memories: received in place,
/// with any number of rows, without padding. Tensors on another device are
/// copied to and from the host.
class HostShardTraffic final : public ShardTraffic {
 public:
  /// `reshard_group`: the ranks that keep a replica among themselves between
  /// forward and backward; empty if there are none. `pool`: memory of full
  /// parameters, which messages share if the model is on the CPU. Collective.
  HostShardTraffic(
      const Mesh& mesh,
      Group reshard_group,
      std::shared_ptr<BlockPool> pool);

  void add_unit(const UnitShards& unit) override;
  void keep_memory(std::int64_t up_to_bytes) override;
  [[nodiscard]] bool is_sent_alone(
      const ShardedParameter& parameter) const override;
  void start_unshard(
      const UnitShards& unit,
      ShardSource source,
      std::vector<at::Tensor> memory) override;
  std::vector<at::Tensor> finish_unshard(const UnitShards& unit) override;
  void before_reshard(const UnitShards& unit) override;
  [[nodiscard]] bool stages_gradients() const override;
  void take_gradient(const UnitShards& unit, std::size_t place) override;
  void start_reduce(const UnitShards& unit, std::size_t place) override;
  void finish_reduce(const UnitShards& unit, std::size_t place) override;
  void start_rest(const UnitShards& unit, std::uint64_t order_hash) override;
  bool finish_rest(const UnitShards& unit) override;
  void abandon(const UnitShards& unit) override;

 private:
  struct Unit {
    HostUnshard unshard;
    HostReduction reduction;
  };
  Unit& state_of(const UnitShards& unit) { return *units_[unit.number]; }

  Mesh mesh_;
  /// The ranks over which the model is sharded: one group for parameters, one
  /// for gradients.
  Group gather_group_;
  Group reduce_group_;
  Group reshard_group_;
  std::shared_ptr<BlockPool> pool_;
  std::vector<std::unique_ptr<Unit>> units_;
};

}  // namespace accelerate::detail
