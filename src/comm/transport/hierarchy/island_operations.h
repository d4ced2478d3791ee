#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "comm/transport/hierarchy/island_links.h"
#include "comm/transport/shared_memory/operations/collectives.h"
#include "comm/transport/shared_memory/shared_memory_connection.h"

namespace accelerate::detail {

/// Blocking collectives of ranks on several islands: through memory within an
/// island, by messages between islands. All ranks make the same calls in the
/// same order, one at a time. Tensors are contiguous.
///
/// Sums: each island adds its ranks' values in rank order, then the islands'
/// sums are added in island order; each stage rounds once.
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
  /// The rank, numbered within its island, that sends and receives for a
  /// collective with this `root`.
  [[nodiscard]] int agent_of(std::size_t island, int root) const;
  [[nodiscard]] int agent_here(int root) const {
    return agent_of(links_.island(), root);
  }
  [[nodiscard]] int agent_rank(std::size_t island, int root) const;

  /// Returns when all ranks are about to make the same call.
  void agree(const CollectiveStamp& stamp);
  void agree_inside(const CollectiveStamp& stamp);
  /// Exchanges the islands' `blocks`, with one row per rank, and places all
  /// rows into `output`. Only this island's block is filled on entry.
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
