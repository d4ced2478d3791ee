#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include <ATen/core/Tensor.h>

#include <accelerate/world.h>

namespace accelerate::detail {

/// A tensor on its way into a region (region.h), in two nodes of the graph. The
/// backward of the inner one begins the collective that the gradient takes, and
/// the backward of the outer one waits for it; what autograd runs between them
/// is computed while the gradient travels. Autograd runs the node with the
/// highest sequence number of those that are ready, so a node of number
/// between() comes after the first and before the second; linear_product()
/// gives that number to the gradient of its weight.
///
/// With create_graph, and for gradients that need no message, the inner node
/// does everything.
class RegionEntrance {
 public:
  /// As copy_to_region(), gather_from_region() with gradients that are summed,
  /// and slice_to_region().
  static RegionEntrance copy(const at::Tensor& tensor, const Group& group);
  static RegionEntrance gather(
      const at::Tensor& tensor,
      std::int64_t dim,
      const Group& group,
      std::span<const std::int64_t> sizes = {});
  static RegionEntrance
  slice(const at::Tensor& tensor, std::int64_t dim, const Group& group);
  /// Goes in as it is, without a collective in forward or backward.
  static RegionEntrance as_it_is(const at::Tensor& tensor);

  /// The tensor inside of the region. The first call does the forward's
  /// collective; later ones return the same tensor, whose gradients are added
  /// before they travel.
  const at::Tensor& enter();

  /// The sequence number between the two nodes.
  [[nodiscard]] std::uint64_t between() const;

 private:
  struct State;
  explicit RegionEntrance(std::shared_ptr<State> state);

  /// Copies are the same entrance.
  std::shared_ptr<State> state_;
};

}  // namespace accelerate::detail
