#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include <ATen/core/Tensor.h>

#include <accelerate/world.h>

namespace accelerate::detail {

/// The entry of a tensor into a region (region.h), as two nodes of the graph.
/// The backward of the inner node begins the gradient's collective, and the
/// backward of the outer node waits for it; what autograd runs in between
/// overlaps with the collective. Of the nodes that are ready, autograd runs the
/// one with the highest sequence number, so a node with number between() comes
/// after the first and before the second; linear_product() gives that number to
/// the gradient of its weight.
///
/// With create_graph, or if gradients need no message, the inner node does
/// everything.
class RegionEntrance {
 public:
  /// Correspond to copy_to_region(), gather_from_region() with partial
  /// gradients, and slice_to_region().
  static RegionEntrance copy(const at::Tensor& tensor, const Group& group);
  static RegionEntrance gather(
      const at::Tensor& tensor,
      std::int64_t dim,
      const Group& group,
      std::span<const std::int64_t> sizes = {});
  static RegionEntrance
  slice(const at::Tensor& tensor, std::int64_t dim, const Group& group);
  /// Enters unchanged, without a collective in forward or backward.
  static RegionEntrance as_it_is(const at::Tensor& tensor);

  /// Returns the tensor inside the region. The first call runs the forward's
  /// collective; later ones return the same tensor, whose gradients are summed
  /// before their collective.
  const at::Tensor& enter();

  /// The sequence number between the two nodes.
  [[nodiscard]] std::uint64_t between() const;

 private:
  struct State;
  explicit RegionEntrance(std::shared_ptr<State> state);

  /// Copies share it and act as one entrance.
  std::shared_ptr<State> state_;
};

}  // namespace accelerate::detail
