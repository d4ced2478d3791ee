#include "parallel/tensor/shared_entrance.h"

#include <cstddef>
#include <string_view>
#include <utility>

#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "comm/autograd/linear_product.h"
#include "comm/autograd/region.h"

namespace accelerate::detail {

namespace {

void require_size(
    const WatchedSplit& weight,
    const at::Tensor& input,
    std::int64_t dim,
    std::int64_t size,
    std::string_view remedy,
    const Group& group) {
  if (input.dim() >= -dim && input.size(dim) == size) return;
  throw ConfigError(format(
      "[parallel] layer \"{}\", whose weight {} is split along dimension {} "
      "over {} ranks, was given an input of shape {}, but its {} should be "
      "{}; {}",
      weight.split.module,
      at::IntArrayRef(weight.global_shape),
      *weight.split.dim,
      group.size(),
      input.sizes(),
      dim == -1 ? "last dimension" : "number of channels",
      size,
      remedy));
}

// The columns that a row-wise layer takes of an input that was divided along
// another dimension. Other ranks have the gradients of the other columns.
at::Tensor own_columns(
    const WatchedSplit& weight,
    const at::Tensor& gathered,
    const Group& group) {
  require_size(
      weight,
      gathered,
      -1,
      weight.global_shape[weight.input_dim()],
      "this is its shape after it was gathered along the dimension of "
      "input_layouts",
      group);
  const auto rank = static_cast<std::size_t>(group.rank());
  return gathered.narrow(
      -1, weight.begins[rank], weight.begins[rank + 1] - weight.begins[rank]);
}

RegionEntrance new_entrance(
    const WatchedSplit& weight,
    const at::Tensor& input,
    const Group& group) {
  const SplitProduct& how = *weight.split.product;
  const std::int64_t dim = weight.feature_dim();
  const auto require = [&](std::int64_t columns, std::string_view remedy) {
    require_size(weight, input, dim, columns, remedy, group);
  };
  if (how.is_rowwise) {
    const accelerate::Shard* const slice = slice_in(how.input);
    if (slice != nullptr && slice->dim != dim) {
      return RegionEntrance::as_it_is(own_columns(
          weight,
          gather_from_region(
              as_autocast_product(input),
              slice->dim,
              group,
              GatheredGradient::partial),
          group));
    }
    if (slice != nullptr) {
      require(
          weight.local_shape[weight.input_dim()],
          "split the layer before it by ColwiseParallel, or, if every rank has "
          "the full input, give input_layouts Replicate");
      return RegionEntrance::as_it_is(as_autocast_product(input));
    }
    require(
        weight.global_shape[weight.input_dim()],
        "if the input is a slice already, leave input_layouts out");
    return RegionEntrance::slice(as_autocast_product(input), dim, group);
  }
  if (const accelerate::Shard* const slice = slice_in(how.input)) {
    return RegionEntrance::gather(
        as_autocast_product(input), slice->dim, group);
  }
  require(
      weight.global_shape[weight.input_dim()],
      "gather the result of the layer before it (output_layouts Replicate), or "
      "say in input_layouts how it is split");
  return RegionEntrance::copy(as_autocast_product(input), group);
}

}  // namespace

RegionEntrance SharedEntrance::of(
    const WatchedSplit& weight,
    const at::Tensor& input,
    const Group& group) {
  const std::lock_guard lock(mutex_);
  const SplitProduct& how = *weight.split.product;
  Input input_now{
      c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>(
          input.getIntrusivePtr()),
      input.is_inference() ? 0 : static_cast<std::int64_t>(input._version()),
      how.is_rowwise,
      how.input,
      at::GradMode::is_enabled(),
      at::autocast::is_autocast_enabled(input.device().type())};
  if (!input_ || *input_ != input_now) {
    entrance_.emplace(new_entrance(weight, input, group));
    input_.emplace(std::move(input_now));
  }
  return *entrance_;
}

void SharedEntrance::forget() {
  const std::lock_guard lock(mutex_);
  input_.reset();
  entrance_.reset();
}

}  // namespace accelerate::detail
