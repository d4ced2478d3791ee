#include "parallel/tensor/split_keeper.h"

#include <algorithm>
#include <span>
#include <utility>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "comm/autograd/linear_product.h"
#include "comm/autograd/region.h"
#include "gate/watched_tensor.h"
#include "parallel/formula.h"
#include "parallel/random_region.h"

namespace accelerate::detail {

namespace {

// Turns this rank's share of a product into the layer's result.
at::Tensor output_of(
    const WatchedSplit& weight,
    const at::Tensor& partial,
    const Group& group) {
  const SplitProduct& how = *weight.split.product;
  if (how.is_rowwise) {
    const accelerate::Shard* const slice = slice_in(how.output);
    return slice == nullptr
        ? reduce_from_region(partial, group)
        : reduce_scatter_to_region(partial, slice->dim, group);
  }
  if (weight.returns_columns()) return partial;
  return gather_from_region(
      partial,
      weight.feature_dim(),
      group,
      GatheredGradient::equal,
      weight.sizes());
}

}  // namespace

std::vector<std::int64_t> WatchedSplit::sizes() const {
  std::vector<std::int64_t> sizes;
  for (std::size_t rank = 0; rank + 1 < begins.size(); ++rank)
    sizes.push_back(begins[rank + 1] - begins[rank]);
  return sizes;
}

std::size_t SplitKeeper::add(WatchedSplit split) {
  const std::size_t unit = splits_.size();
  splits_.push_back(std::move(split));
  const std::optional<SplitProduct>& product = splits_[unit].split.product;
  if (product && product->is_attention) {
    const std::int64_t own = splits_[unit].local_shape[0] / 3;
    for (const std::int64_t num_projections : {1, 2}) {
      WatchedSplit rows = splits_[unit];
      rows.local_shape[0] = num_projections * own;
      splits_.push_back(std::move(rows));
    }
  }
  return unit;
}

void SplitKeeper::begin_forward() {
  if (num_forwards_++ == 0) last_slice_.clear();
}

void SplitKeeper::end_forward() {
  leave_random_region(this);
  if (--num_forwards_ == 0) forget_input();
}

void SplitKeeper::abandon_forward() {
  leave_random_region(this);
  num_forwards_ = 0;
  forget_input();
}

// Enters a random region if what follows works on slices; leaves it if it works
// on tensors that every rank has.
void SplitKeeper::follow_placement(bool takes_slice, bool returns_slice) const {
  if (!is_in_forward()) return;
  if (returns_slice) {
    enter_random_region(this, random_stream_of(Axis::tensor, group_.rank()));
  } else if (takes_slice) {
    leave_random_region(this);
  }
}

const WatchedSplit* SplitKeeper::find(const c10::IValue& value) const {
  const TensorWatch* const watch = find_watch(value, this);
  return watch == nullptr ? nullptr : &splits_[watch->unit];
}

// The product with a split weight, if the operator is one.
std::optional<SplitKeeper::Product> SplitKeeper::product_in(
    GatedCall& call) const {
  const WatchedSplit* weight = nullptr;
  const auto shape_if =
      [&](const c10::IValue& value,
          bool is_transposed) -> const std::vector<std::int64_t>* {
    weight = find(value);
    const bool is_wanted = weight != nullptr && weight->split.product &&
        weight->split.product->is_transposed == is_transposed;
    return is_wanted ? &weight->local_shape : nullptr;
  };
  std::optional<WeightProduct> product = weight_product_in(
      call, [&](const c10::IValue& value) { return shape_if(value, false); });
  if (!product) {
    product = transposed_product_in(
        call, [&](const c10::IValue& value) { return shape_if(value, true); });
  }
  if (!product) return std::nullopt;
  return Product{weight, *std::move(product)};
}

bool SplitKeeper::is_in_model() const {
  return is_in_forward() || (is_in_backward() && !is_in_formula());
}

// This rank's share of a product, plus `bias` unless undefined.
at::Tensor SplitKeeper::multiply_locally(
    GatedCall& call,
    const Product& product,
    const at::Tensor& bias) {
  const WatchedSplit& weight = *product.weight;
  RegionEntrance entrance = entrance_.of(
      weight, call.arguments()[product.factors.input_at].toTensor(), group_);
  if (!call.may_be_replaced_next())
    return linear_product(entrance, product.factors.weight, bias);
  if (bias.is_same(product.factors.bias)) {
    call.arguments()[product.factors.input_at] = entrance.enter();
  } else {
    static const c10::OperatorHandle matmul =
        c10::Dispatcher::singleton().findSchemaOrThrow("aten::matmul", "");
    const c10::IValue factors[]{entrance.enter(), product.factors.transposed};
    call.become(matmul, factors);
  }
  call.run();
  return call.results().front().toTensor();
}

void SplitKeeper::multiply(GatedCall& call, const Product& product) {
  const WatchedSplit& weight = *product.weight;
  // A local bias belongs to local columns; any other bias is added once, to the
  // result of all ranks.
  const at::Tensor& bias = product.factors.bias;
  at::Tensor result = multiply_locally(
      call, product, weight.returns_columns() ? bias : at::Tensor());
  add_up(call, weight, std::move(result), bias);
}

// Turns this rank's share into the layer's result, and adds the bias if it has
// not been added yet.
void SplitKeeper::add_up(
    GatedCall& call,
    const WatchedSplit& weight,
    at::Tensor result,
    const at::Tensor& bias) {
  const SplitProduct& how = *weight.split.product;
  if (weight.returns_columns()) {
    remember(weight, result);
  } else {
    result = output_of(weight, result, group_);
    if (bias.defined()) {
      const WatchedSplit* const watched = find(bias);
      at::Tensor term = watched != nullptr && watched->split.sums_gradient
          ? copy_to_region(bias, group_)
          : bias;
      term = term.to(result.scalar_type());
      // Channels come before the dimensions of a convolution's kernel.
      for (std::int64_t dim = -1; dim > weight.feature_dim(); --dim)
        term = term.unsqueeze(-1);
      result = result + term;
    }
  }
  follow_placement(
      slice_in(how.input) != nullptr, slice_in(how.output) != nullptr);
  if (call.results().empty()) {
    call.replace(std::move(result));
  } else {
    call.results().front() = std::move(result);
  }
}

// For a layer that returns full results, gathers the weight if code takes some
// of its rows, as MultiheadAttention does if queries are not the keys.
bool SplitKeeper::gather_rows(GatedCall& call) const {
  if (call.operation().operator_name().name != "aten::slice" || !is_in_model())
    return false;
  const WatchedSplit* const weight = find(call.arguments().front());
  if (weight == nullptr || !weight->split.product ||
      weight->split.product->is_rowwise || weight->returns_columns())
    return false;
  const at::Tensor& local = call.arguments().front().toTensor();
  if (local.sizes() != at::IntArrayRef(weight->local_shape)) return false;
  call.arguments().front() = gather_from_region(
      local,
      *weight->split.dim,
      group_,
      GatheredGradient::equal,
      weight->sizes());
  call.run();
  return true;
}

// Runs an operator on parameters that ranks use on slices of the sequence. A
// view of such a parameter counts as one, and sums its gradient when it is
// used.
void SplitKeeper::run_with_shared_gradients(GatedCall& call) {
  bool is_view = false;
  const auto& schema = call.operation().schema().arguments();
  const std::span<c10::IValue> arguments = call.arguments();
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const WatchedSplit* const watched = find(arguments[i]);
    if (watched == nullptr || !watched->split.sums_gradient ||
        !at::GradMode::is_enabled() || !arguments[i].toTensor().requires_grad())
      continue;
    const c10::AliasInfo* const alias = schema[i].alias_info();
    if (alias != nullptr && !alias->isWrite()) {
      is_view = true;
    } else {
      arguments[i] = copy_to_region(arguments[i].toTensor(), group_);
    }
  }
  require_slice(call);
  if (!is_view) return;
  // A reshape or a cast may have copied instead.
  for (c10::IValue& result : call.results()) {
    if (result.isTensor() && find(result) == nullptr)
      result = copy_to_region(result.toTensor(), group_);
  }
}

// Views of a slice are slices; any other result would be mistaken for a result
// of the full parameter.
void SplitKeeper::require_slice(GatedCall& call) {
  const WatchedSplit* split = nullptr;
  for (const c10::IValue& value : call.arguments()) {
    const WatchedSplit* const watched = find(value);
    if (watched != nullptr && watched->split.dim) split = watched;
  }
  call.run();
  if (split == nullptr || !is_in_forward()) return;
  for (const c10::IValue& value : call.results()) {
    if (value.isTensor() && find(value) == nullptr) {
      throw ConfigError(format(
          "[parallel] {} takes \"{}\" of shape {}, of which this rank has a "
          "slice of shape {}, but tensor parallelism supports only products "
          "with its transpose, convolutions and embeddings on slices; leave "
          "module \"{}\" out of parallelize_plan",
          call.operation().operator_name().name,
          split->split.name,
          at::IntArrayRef(split->global_shape),
          at::IntArrayRef(split->local_shape),
          split->split.module));
    }
  }
}

void SplitKeeper::remember(
    const WatchedSplit& weight,
    const at::Tensor& output) {
  std::vector<std::int64_t> full = output.sizes().vec();
  const auto num_features = -weight.feature_dim();
  if (output.dim() < num_features) return;
  full[static_cast<std::size_t>(output.dim() - num_features)] =
      weight.global_shape[static_cast<std::size_t>(*weight.split.dim)];
  last_slice_ = format(
      "layer \"{}\" is split over {} ranks, and returned {} where one process "
      "returns {}",
      weight.split.module,
      group_.size(),
      output.sizes(),
      at::IntArrayRef(full));
}

void SplitKeeper::call(GatedCall& call) {
  if (is_in_formula() || is_full_) return call.run();
  if (const std::optional<Product> product = product_in(call))
    return multiply(call, *product);
  if (look_up(call) || convolve(call) || take_projections(call) ||
      gather_rows(call) || call_whole_module(call))
    return;
  run_with_shared_gradients(call);
}

}  // namespace accelerate::detail
