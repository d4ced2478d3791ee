#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "comm/transport/hierarchy/islands.h"
#include "comm/transport/shared_memory/memory/layout.h"
#include "comm/transport/transport.h"

namespace accelerate::detail {

/// Messages between ranks of different islands, for one collective at a time.
/// Calls block. Used by one thread at a time.
class IslandLinks {
 public:
  /// The largest payload, in bytes, that meet() can send with a stamp.
  static constexpr std::size_t kMostPayload = 4096;

  IslandLinks(
      std::shared_ptr<Connection> network,
      Islands islands,
      std::vector<int> world_ranks);

  [[nodiscard]] const Islands& islands() const { return islands_; }
  [[nodiscard]] int rank() const { return network_->rank(); }
  [[nodiscard]] std::size_t island() const {
    return islands_.island_of(rank());
  }
  [[nodiscard]] const std::vector<int>& own_members() const {
    return islands_.members(island());
  }
  [[nodiscard]] int local_rank() const { return islands_.local_rank(rank()); }
  [[nodiscard]] bool is_leader() const { return local_rank() == 0; }

  /// Called by the first rank of each island: compares stamps, and returns each
  /// island's payload, by island. Throws std::runtime_error with both calls if
  /// the islands are about to do different things.
  std::vector<at::Tensor> meet(
      CollectiveStamp stamp,
      const at::Tensor& payload = {});

  /// Called by rank number `lane` of each island: copies island `from`'s
  /// `bytes` to all.
  void broadcast(const at::Tensor& bytes, std::size_t from, int lane);
  /// Called by rank number `lane` of each island: reduces `values`, of one
  /// dimension, over the islands, in island order, in place.
  void all_reduce(const at::Tensor& values, ReduceOp op, int lane);

  /// Messages in flight; wait() completes them.
  class Messages {
   public:
    explicit Messages(const IslandLinks& links) : links_(links) {}
    /// Tensors must be contiguous; empty ones are not sent.
    void send(const at::Tensor& tensor, int to);
    void receive(const at::Tensor& tensor, int from);
    void wait();

   private:
    const IslandLinks& links_;
    std::vector<Work> works_;
  };

  /// Reduces equally shaped tensors of all islands, in island order, into `to`,
  /// which may be one of them.
  static void reduce_in_order(
      const at::Tensor& to,
      const std::vector<at::Tensor>& by_island,
      ReduceOp op);

 private:
  [[nodiscard]] int lane_rank(std::size_t island, int lane) const {
    return islands_.members(island)[static_cast<std::size_t>(lane)];
  }

  std::shared_ptr<Connection> network_;
  Islands islands_;
  std::vector<int> world_ranks_;
  std::uint64_t sequence_ = 0;
};

}  // namespace accelerate::detail
