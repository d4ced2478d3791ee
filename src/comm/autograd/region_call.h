#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include "comm/autograd/region.h"
#include "comm/group/begun_exchange.h"

namespace accelerate::detail {

/// The collectives of regions (region.h), and those of their gradients.
enum class RegionOp {
  copy,
  reduce,
  gather_partial,
  gather_equal,
  slice,
  reduce_scatter,
};

/// Returns the collective that an operation's gradient takes.
RegionOp gradient_of(RegionOp op);

/// The data that forward and backward of one call share.
struct RegionCall : torch::CustomClassHolder {
  RegionCall(
      RegionOp which,
      Group among,
      std::int64_t along = 0,
      std::vector<std::int64_t> slices = {})
      : op(which),
        group(std::move(among)),
        dim(along),
        begins(std::move(slices)) {}

  [[nodiscard]] std::int64_t begin(int rank) const {
    return begins[static_cast<std::size_t>(rank)];
  }
  [[nodiscard]] std::int64_t size(int rank) const {
    return begin(rank + 1) - begin(rank);
  }
  [[nodiscard]] std::int64_t longest() const {
    std::int64_t most = 0;
    for (int rank = 0; rank < group.size(); ++rank)
      most = std::max(most, size(rank));
    return most;
  }
  [[nodiscard]] at::Tensor slice(const at::Tensor& tensor, int rank) const {
    return tensor.narrow(dim, begin(rank), size(rank));
  }
  RegionOp op;
  Group group;
  std::int64_t dim;
  std::vector<std::int64_t> begins;
};

/// The calls of copy_to_region(), gather_from_region() and slice_to_region().
c10::intrusive_ptr<RegionCall> copy_call(const Group& group);
c10::intrusive_ptr<RegionCall> gather_call(
    const at::Tensor& tensor,
    std::int64_t dim,
    const Group& group,
    GatheredGradient gradient,
    std::span<const std::int64_t> sizes);
c10::intrusive_ptr<RegionCall>
slice_call(const at::Tensor& tensor, std::int64_t dim, const Group& group);

/// Runs the collective; autograd records nothing.
at::Tensor result_of(const at::Tensor& tensor, const RegionCall& call);

/// The result of a collective in flight. `tensor` has its shape, and its values
/// after wait().
class PendingResult {
 public:
  explicit PendingResult(at::Tensor result) : tensor(std::move(result)) {}
  void wait();

  at::Tensor tensor;
  BegunExchange collective = {};
  /// The received data: one slice along `dim` per rank, some padded. Empty if
  /// received in `tensor`.
  std::vector<at::Tensor> slices = {};
  std::int64_t dim = 0;
};

/// Begins the collective. reduce, gather_partial, gather_equal and
/// reduce_scatter proceed while the rank computes; the others finish
/// immediately.
PendingResult begin_collective(
    const at::Tensor& tensor,
    const RegionCall& call);

/// Runs the collective, recorded by autograd.
at::Tensor record_collective(
    const at::Tensor& tensor,
    const c10::intrusive_ptr<RegionCall>& call);

}  // namespace accelerate::detail
