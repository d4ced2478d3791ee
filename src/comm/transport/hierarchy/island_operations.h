#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "comm/transport/hierarchy/island_links.h"
#include "comm/transport/shared_memory/operations/collectives.h"
#include "comm/transport/shared_memory/shared_memory_connection.h"

namespace accelerate::detail {

/// Collectives of ranks on several islands, as functions that block: inside of
/// an island by memory, between islands by messages. All ranks call the same
/// ones in the same order, one after the other. Tensors are contiguous.
///
/// Sums: each island adds its ranks' values in their order, then the islands'
/// sums are added in the order of the islands; each of both rounds once.
class IslandOperations {
 public:
  /// `inside`: this rank's island; null if it is alone there.
  IslandOperations(
      std::shared_ptr<SharedMemoryConnection> inside,
      IslandLinks links)
      : inside_(std::move(inside)), links_(std::move(links)) {}

  void all_reduce(const at::Tensor& tensor, ReduceOp op);
  void reduce(const at::Tensor& tensor, ReduceOp op, int dst);
  void reduce_scatter(
      const at::Tensor& output,
      const at::Tensor& input,
      ReduceOp op);
  void broadcast(const at::Tensor& tensor, int src);
  void all_gather(const at::Tensor& output, const at::Tensor& input);
  void gather(
      const std::vector<at::Tensor>& outputs,
      const at::Tensor& input,
      int dst);
  void scatter(
      const at::Tensor& output,
      const std::vector<at::Tensor>& inputs,
      int src);
  void all_to_all(
      const at::Tensor& output,
      const at::Tensor& input,
      const std::vector<std::int64_t>& output_sizes,
      const std::vector<std::int64_t>& input_sizes);
  void barrier();

 private:
  [[nodiscard]] const Islands& islands() const { return links_.islands(); }
  [[nodiscard]] std::size_t num_lanes(std::int64_t bytes) const;
  /// The rank of an island, by its number there, that sends and receives for a
  /// collective whose root is `root`.
  [[nodiscard]] int agent_of(std::size_t island, int root) const;
  [[nodiscard]] int agent_here(int root) const {
    return agent_of(links_.island(), root);
  }
  [[nodiscard]] int agent_rank(std::size_t island, int root) const;

  /// Returns when all ranks are about to do the same.
  void agree(const CollectiveStamp& stamp);
  void agree_inside(const CollectiveStamp& stamp);
  /// Exchanges the islands' `blocks`, of a row per rank, of which only this
  /// island's is filled, and places all rows into `output`.
  void exchange_blocks(
      const at::Tensor& output,
      std::vector<at::Tensor> blocks,
      std::size_t lanes);
  void place(const at::Tensor& output, const std::vector<at::Tensor>& blocks)
      const;
  [[nodiscard]] at::Tensor empty_block(
      const at::Tensor& output,
      std::size_t island) const;

  std::shared_ptr<SharedMemoryConnection> inside_;
  IslandLinks links_;
};

}  // namespace accelerate::detail
