#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <vector>

#include <accelerate/parallel.h>
#include <accelerate/world.h>

#include "parallel/shard/copy_stream.h"
#include "parallel/shard/reduction/device_reduction.h"
#include "parallel/shard/shard_traffic.h"
#include "parallel/shard/unshard/block_pool.h"
#include "parallel/shard/unshard/device_unshard.h"

namespace accelerate::detail {

/// Moves shards from device to device, by collectives that streams wait for.
/// The host waits only where it keeps the shards, and at the end of a backward
/// that gave this rank no gradient for some parameter.
///
/// All ranks begin reductions in one order, which all of them know without
/// asking: units in the reverse order in which the forward first gathered them.
/// Those that come early are held back.
class DeviceShardTraffic final : public ShardTraffic {
 public:
  /// As HostShardTraffic's. Collective.
  DeviceShardTraffic(
      const Mesh& mesh,
      Group reshard_group,
      std::shared_ptr<BlockPool> pool);

  void add_unit(const UnitShards& unit) override;
  void keep_memory(std::int64_t) override {}
  [[nodiscard]] bool is_sent_alone(
      const ShardedParameter& parameter) const override;
  void start_unshard(
      const UnitShards& unit,
      ShardSource source,
      std::vector<at::Tensor> memory) override;
  std::vector<at::Tensor> finish_unshard(const UnitShards& unit) override;
  void before_reshard(const UnitShards& unit) override;

  void begin_forward(bool records) override;
  [[nodiscard]] bool has_one_order() const override { return true; }
  void begin_backward() override;
  [[nodiscard]] bool stages_gradients() const override { return false; }
  void take_gradient(const UnitShards& unit, std::size_t place) override;
  void start_reduce(const UnitShards& unit, std::size_t place) override;
  /// Streams wait for reductions when others begin.
  void finish_reduce(const UnitShards&, std::size_t) override {}
  void start_rest(const UnitShards& unit, std::uint64_t order_hash) override;
  bool finish_rest(const UnitShards&) override { return false; }
  void end_backward() override;
  void abandon(const UnitShards& unit) override;

 private:
  struct Unit {
    const UnitShards* shards;
    DeviceUnshard unshard;
    /// Those of this backward; more than one if a unit's gradients come twice.
    std::deque<DeviceReduction> reductions = {};
    /// Gathered since the last reductions ended; more than once.
    bool was_gathered = false;
    bool recurs = false;
  };
  struct Turn {
    Unit* unit;
    DeviceReduction* reduction;
  };

  [[nodiscard]] Unit& state_of(const UnitShards& unit) {
    return *units_[unit.number];
  }
  void note_gather(std::size_t unit);
  void add_turn(Unit& unit);
  [[nodiscard]] DeviceReduction& reduction_of(const UnitShards& unit);
  void begin_what_is_due();
  void join_earlier();
  void end_turns();

  Group gather_group_;
  Group reduce_group_;
  Group reshard_group_;
  std::shared_ptr<BlockPool> pool_;
  CopyStream copies_;
  std::vector<std::unique_ptr<Unit>> units_;
  /// Units in the order in which forwards first gathered them since the last
  /// reductions ended.
  std::vector<std::size_t> gathered_;
  bool notes_gathers_ = false;
  bool has_reduced_ = false;
  /// Reductions of this backward, in the order in which they begin.
  std::vector<Turn> turns_;
  /// The one that begins next, and the first that streams may not wait for yet.
  std::size_t turn_ = 0;
  std::size_t first_unjoined_ = 0;
};

}  // namespace accelerate::detail
