#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accelerate/world.h>

#include "comm/transport/p2p_batch.h"
#include "parallel/shard/block_pool.h"
#include "parallel/shard/host_messages.h"
#include "parallel/shard/sharded_parameter.h"

namespace accelerate::detail {

/// Gradients of one unit's parameters on their way to the ranks that keep them,
/// by messages between hosts, once per backward: each large one by itself, the
/// others together. Its calls are ShardTraffic's.
class HostReduction {
 public:
  HostReduction(Group group, HostTags tags, std::shared_ptr<BlockPool> pool);
  HostReduction(const HostReduction&) = delete;
  HostReduction& operator=(const HostReduction&) = delete;
  ~HostReduction();

  void take(const UnitShards& unit, std::size_t place);
  void send(const UnitShards& unit, std::size_t place);
  void finish(const UnitShards& unit, std::size_t place);
  void send_rest(const UnitShards& unit, std::uint64_t mark);
  bool finish_rest(const UnitShards& unit);
  void abandon();

 private:
  struct Large;

  void begin_anew();
  [[nodiscard]] at::Tensor take_gradient(
      const UnitShards& unit,
      std::size_t place);
  /// The mean of one shard per rank; takes what memory it needs from `parts`.
  [[nodiscard]] at::Tensor mean_of(
      const ShardedParameter& parameter,
      std::vector<at::Tensor>& parts) const;
  /// One shard per rank of a small parameter, which begins at `begin` of each
  /// pack.
  [[nodiscard]] std::vector<at::Tensor> unpack(
      const ShardedParameter& parameter,
      std::int64_t begin,
      std::int64_t num_bytes) const;

  Group group_;
  HostTags tags_;
  std::shared_ptr<BlockPool> pool_;
  std::uint64_t round_ = 0;
  /// By place; null for the small, and before they are taken.
  std::vector<std::unique_ptr<Large>> large_;
  /// Means of this rank's rows, by place.
  std::vector<at::Tensor> sums_;
  std::vector<std::uint8_t> was_used_;
  std::unique_ptr<P2PBatch> rest_;
  std::vector<at::Tensor> sent_packs_, packs_;  // one per rank
};

}  // namespace accelerate::detail
