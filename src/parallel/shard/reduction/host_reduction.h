#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accelerate/world.h>

#include "comm/group/begun_exchange.h"
#include "parallel/shard/host_messages.h"
#include "parallel/shard/sharded_parameter.h"
#include "parallel/shard/unshard/block_pool.h"

namespace accelerate::detail {

/// Reduces the gradients of one unit to the ranks that keep their shards, by
/// messages between hosts, once per backward: each large gradient separately,
/// the others together. See ShardTraffic for the calls.
class HostReduction {
 public:
  HostReduction(Group group, HostTags tags, std::shared_ptr<BlockPool> pool);
  HostReduction(const HostReduction&) = delete;
  HostReduction& operator=(const HostReduction&) = delete;
  ~HostReduction();

  void take(const UnitShards& unit, std::size_t place);
  void send(const UnitShards& unit, std::size_t place);
  void finish(const UnitShards& unit, std::size_t place);
  void send_rest(const UnitShards& unit, std::uint64_t order_hash);
  bool finish_rest(const UnitShards& unit);
  void abandon();

 private:
  struct Large;

  void start_next_round();
  [[nodiscard]] at::Tensor take_gradient(
      const UnitShards& unit,
      std::size_t place);
  /// Returns the mean over the ranks of this rank's shard of the gradient.
  /// `shards`: one tensor per rank; at most one is moved from.
  [[nodiscard]] at::Tensor mean_of(
      const ShardedParameter& parameter,
      std::vector<at::Tensor>& shards) const;
  /// Returns the shards of a small parameter's gradient, one per rank, which
  /// begin at byte `begin` of each pack.
  [[nodiscard]] std::vector<at::Tensor> unpack(
      const ShardedParameter& parameter,
      std::int64_t begin,
      std::int64_t num_bytes) const;

  Group group_;
  HostTags tags_;
  std::shared_ptr<BlockPool> pool_;
  std::uint64_t round_ = 0;
  /// Large parameters by place; null for small parameters, and before the
  /// gradient is taken.
  std::vector<std::unique_ptr<Large>> large_;
  /// Means of this rank's rows, by place.
  std::vector<at::Tensor> means_;
  std::vector<std::uint8_t> was_used_;
  std::optional<BegunExchange> rest_;
  std::vector<at::Tensor> sent_packs_, packs_;  // one per rank
};

}  // namespace accelerate::detail
