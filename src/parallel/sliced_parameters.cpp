#include "parallel/sliced_parameters.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <utility>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include "comm/autograd/region.h"
#include "gate/added_products.h"
#include "gate/gate.h"
#include "gate/gate_entry.h"
#include "gate/watched_tensor.h"

namespace accelerate::detail {

void become_slice(const at::Tensor& tensor, const at::Tensor& slice) {
  std::vector<TensorWatch> watches = take_watches(tensor);
  tensor.unsafeGetTensorImpl()->shallow_copy_from(slice.getIntrusivePtr());
  // Nothing computes with an empty slice.
  if (slice.numel() > 0) {
    for (TensorWatch& watch : watches) watch_tensor(tensor, std::move(watch));
  }
  if (tensor.grad().defined()) tensor.mutable_grad().reset();
}

namespace {

// Watches of keepers that add to a layer's results, whatever a rank has of its
// weight.
std::vector<TensorWatch> watches_that_add(const at::Tensor& tensor) {
  std::vector<TensorWatch> found;
  const GateEntry* const entry = entry_of(tensor);
  if (entry == nullptr) return found;
  std::ranges::copy_if(
      entry->watches, std::back_inserter(found), [](const TensorWatch& watch) {
        return dynamic_cast<const AddedProducts*>(watch.keeper.get()) !=
            nullptr;
      });
  return found;
}

}  // namespace

RangesByRank ranges_between(const std::vector<std::int64_t>& begins) {
  RangesByRank ranges;
  for (std::size_t i = 0; i + 1 < begins.size(); ++i)
    ranges.push_back({{begins[i], begins[i + 1]}});
  return ranges;
}

at::Tensor SlicedParameters::Slice::full(const at::Tensor& slices) const {
  const bool is_ordered = std::ranges::all_of(
      ranges, [](const auto& of_rank) { return of_rank.size() == 1; });
  if (is_ordered) return slices;
  const at::Tensor ordered = at::empty_like(slices);
  std::int64_t taken = 0;
  for (const auto& of_rank : ranges) {
    for (const auto& [first, last] : of_rank) {
      ordered.narrow(dim, first, last - first)
          .copy_(slices.narrow(dim, taken, last - first));
      taken += last - first;
    }
  }
  return ordered;
}

at::Tensor SlicedParameters::Slice::own(const at::Tensor& parameter) const {
  std::vector<at::Tensor> pieces;
  for (const auto& [first, last] :
       ranges[static_cast<std::size_t>(group.rank())])
    pieces.push_back(parameter.narrow(dim, first, last - first));
  return pieces.size() == 1 ? pieces[0] : at::cat(pieces, dim);
}

void SlicedParameters::add(
    const at::Tensor& tensor,
    std::int64_t dim,
    RangesByRank ranges,
    const Group& group) {
  std::vector<std::int64_t> sizes;
  for (const auto& of_rank : ranges) {
    sizes.push_back(0);
    for (const auto& [first, last] : of_rank) sizes.back() += last - first;
  }
  slices_.push_back({tensor, dim, std::move(ranges), std::move(sizes), group});
}

void SlicedParameters::open() {
  const at::NoGradGuard no_grad;
  const BypassGates bypass;
  for (Slice& slice : slices_) {
    slice.kept = slice.tensor.detach();
    const at::Tensor full = slice.full(gather_from_region(
        slice.kept,
        slice.dim,
        slice.group,
        GatheredGradient::equal,
        slice.sizes));
    std::vector<TensorWatch> watches = watches_that_add(slice.tensor);
    slice.tensor.unsafeGetTensorImpl()->shallow_copy_from(
        full.getIntrusivePtr());
    for (TensorWatch& watch : watches)
      watch_tensor(slice.tensor, std::move(watch));
    slice.version = slice.tensor._version();
    slice.shown = full;
  }
}

void SlicedParameters::close() {
  const at::NoGradGuard no_grad;
  const BypassGates bypass;
  for (Slice& slice : slices_) {
    const at::Tensor full = slice.tensor.detach();
    // The program may have given the tensor other memory (set_data).
    const bool is_changed = slice.tensor._version() != slice.version ||
        full.const_data_ptr() != slice.shown.const_data_ptr();
    slice.tensor.unsafeGetTensorImpl()->shallow_copy_from(
        slice.kept.getIntrusivePtr());
    if (is_changed) slice.tensor.copy_(slice.own(full));
    slice.kept.reset();
    slice.shown.reset();
  }
}

}  // namespace accelerate::detail
