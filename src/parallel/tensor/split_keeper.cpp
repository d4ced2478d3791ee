#include "parallel/tensor/split_keeper.h"

#include <algorithm>
#include <span>
#include <utility>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/function.h>

#include <accelerate/error.h>

#include "activations/tape.h"
#include "base/text.h"
#include "comm/autograd/linear_product.h"
#include "comm/autograd/region.h"
#include "gate/watched_tensor.h"
#include "parallel/random_region.h"

namespace accelerate::detail {

namespace {

// Whether autograd's own formulas call an operator, on tensors that a forward
// saved: they need no collectives, which have formulas of their own. A forward
// that is recomputed inside of a backward does.
bool is_in_formula() {
  return torch::autograd::get_current_node() != nullptr &&
      !c10::impl::tls_is_dispatch_key_excluded(kRecordingKey);
}

const accelerate::Shard* slice_in(const TensorPlacement& placement) {
  return std::get_if<accelerate::Shard>(&placement);
}

bool is_operator(const GatedCall& call, std::string_view name) {
  const auto& found = call.operation().operator_name();
  return found.name == name && found.overload_name.empty();
}

}  // namespace

std::vector<std::int64_t> WatchedSplit::sizes() const {
  std::vector<std::int64_t> sizes;
  for (std::size_t rank = 0; rank + 1 < begins.size(); ++rank)
    sizes.push_back(begins[rank + 1] - begins[rank]);
  return sizes;
}

std::size_t SplitKeeper::add(WatchedSplit split) {
  splits_.push_back(std::move(split));
  return splits_.size() - 1;
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

// What follows works on slices, of which the other ranks have the rest, or on
// what every rank has.
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

// The product with a split weight that an operator is.
std::optional<SplitKeeper::Product> SplitKeeper::product_in(
    GatedCall& call) const {
  const WatchedSplit* weight = nullptr;
  std::optional<WeightProduct> product = weight_product_in(
      call, [&](const c10::IValue& value) -> const std::vector<std::int64_t>* {
        weight = find(value);
        return weight != nullptr && weight->split.product ? &weight->local_shape
                                                          : nullptr;
      });
  if (!product) return std::nullopt;
  return Product{weight, *std::move(product)};
}

RegionEntrance SplitKeeper::new_entrance(
    const WatchedSplit& weight,
    const at::Tensor& input) const {
  const SplitProduct& how = *weight.split.product;
  const auto require = [&](std::int64_t columns, std::string_view remedy) {
    if (input.dim() > 0 && input.size(-1) == columns) return;
    throw ConfigError(format(
        "[parallel] layer \"{}\", whose weight {} is split along dimension {} "
        "over {} ranks, was given an input of shape {}, but its last dimension "
        "should be {}; {}",
        weight.split.module,
        at::IntArrayRef(weight.global_shape),
        *weight.split.dim,
        group_.size(),
        input.sizes(),
        columns,
        remedy));
  };
  if (how.is_rowwise) {
    if (slice_in(how.input) != nullptr) {
      require(
          weight.local_shape[1],
          "split the layer before it by ColwiseParallel, or, if every rank has "
          "the full input, give input_layouts Replicate");
      return RegionEntrance::as_it_is(as_autocast_product(input));
    }
    require(
        weight.global_shape[1],
        "if the input is a slice already, leave input_layouts out");
    return RegionEntrance::slice(as_autocast_product(input), -1, group_);
  }
  if (const accelerate::Shard* const slice = slice_in(how.input)) {
    return RegionEntrance::gather(
        as_autocast_product(input), slice->dim, group_);
  }
  require(
      weight.global_shape[1],
      "gather the result of the layer before it (output_layouts Replicate), or "
      "say in input_layouts how it is split");
  return RegionEntrance::copy(as_autocast_product(input), group_);
}

// Layers that take the same input, as those of queries, keys and values do,
// share what is gathered of it, and the message of its gradient.
RegionEntrance SplitKeeper::entrance_of(
    const WatchedSplit& weight,
    const at::Tensor& input) {
  const std::lock_guard lock(last_input_mutex_);
  const SplitProduct& how = *weight.split.product;
  LastInput input_now{
      c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>(
          input.getIntrusivePtr()),
      input.is_inference() ? 0 : static_cast<std::int64_t>(input._version()),
      how.is_rowwise,
      how.input,
      at::GradMode::is_enabled(),
      at::autocast::is_autocast_enabled(input.device().type())};
  if (!last_input_ || !last_input_->is_like(input_now)) {
    last_entrance_.emplace(new_entrance(weight, input));
    last_input_.emplace(std::move(input_now));
  }
  return *last_entrance_;
}

void SplitKeeper::forget_input() {
  const std::lock_guard lock(last_input_mutex_);
  last_input_.reset();
  last_entrance_.reset();
}

at::Tensor SplitKeeper::output_of(
    const WatchedSplit& weight,
    const at::Tensor& partial) const {
  const SplitProduct& how = *weight.split.product;
  if (how.is_rowwise) {
    const accelerate::Shard* const slice = slice_in(how.output);
    return slice == nullptr
        ? reduce_from_region(partial, group_)
        : reduce_scatter_to_region(partial, slice->dim, group_);
  }
  if (slice_in(how.output) != nullptr) return partial;
  return gather_from_region(
      partial, -1, group_, GatheredGradient::equal, weight.sizes());
}

bool SplitKeeper::is_in_model() const {
  return is_in_forward() ||
      (torch::autograd::get_current_node() != nullptr && !is_in_formula());
}

// This rank's share of a product, plus `bias` unless undefined.
at::Tensor SplitKeeper::multiply_locally(
    GatedCall& call,
    const Product& product,
    const at::Tensor& bias) {
  const WatchedSplit& weight = *product.weight;
  RegionEntrance entrance = entrance_of(
      weight, call.arguments()[product.factors.input_at].toTensor());
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
  const SplitProduct& how = *weight.split.product;
  // A local bias belongs to local columns; any other is added once, to the
  // result of all ranks.
  const bool returns_slice = !how.is_rowwise && slice_in(how.output) != nullptr;
  at::Tensor bias = product.factors.bias;
  at::Tensor result =
      multiply_locally(call, product, returns_slice ? bias : at::Tensor());
  if (returns_slice) {
    remember(weight, result);
  } else {
    result = output_of(weight, result);
    if (bias.defined()) {
      const WatchedSplit* const watched = find(bias);
      if (watched != nullptr && watched->split.sums_gradient)
        bias = copy_to_region(bias, group_);
      result = result + bias.to(result.scalar_type());
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

at::Tensor SplitKeeper::look_up_vocabulary(
    GatedCall& call,
    const WatchedSplit& table) const {
  const std::span<c10::IValue> arguments = call.arguments();
  const at::Tensor& indices = arguments[1].toTensor();
  const std::int64_t rows = table.global_shape[0];
  if (indices.is_cpu() && indices.numel() > 0 &&
      (indices.min().item<std::int64_t>() < 0 ||
       indices.max().item<std::int64_t>() >= rows)) {
    throw ConfigError(format(
        "[parallel] embedding \"{}\" of {} rows was given indices from {} to "
        "{}; they count from 0 to {}",
        table.split.module,
        rows,
        indices.min().item<std::int64_t>(),
        indices.max().item<std::int64_t>(),
        rows - 1));
  }
  const auto rank = static_cast<std::size_t>(group_.rank());
  const std::int64_t begin = table.begins[rank];
  const std::int64_t end = table.begins[rank + 1];
  const at::Tensor is_elsewhere =
      indices.lt(begin).logical_or_(indices.ge(end));
  const std::int64_t padding = arguments[2].toInt();
  const at::Tensor found = at::embedding(
      arguments[0].toTensor(),
      (indices - begin).masked_fill_(is_elsewhere, 0),
      padding >= begin && padding < end ? padding - begin : -1,
      /*scale_grad_by_freq=*/false,
      arguments[4].toBool());
  const at::Tensor own = found.masked_fill(is_elsewhere.unsqueeze(-1), 0);
  const accelerate::Shard* const slice =
      slice_in(table.split.embedding->output);
  return slice == nullptr ? reduce_from_region(own, group_)
                          : reduce_scatter_to_region(own, slice->dim, group_);
}

// Looks up embeddings in a split table, if the operator does.
bool SplitKeeper::look_up(GatedCall& call) {
  if (!is_operator(call, "aten::embedding")) return false;
  const WatchedSplit* const table = find(call.arguments().front());
  if (table == nullptr || !table->split.embedding) return false;
  follow_placement(
      /*takes_slice=*/false,
      slice_in(table->split.embedding->output) != nullptr);
  if (table->split.embedding->is_vocabulary) {
    call.replace(look_up_vocabulary(call, *table));
    return true;
  }
  call.run();
  at::Tensor columns = call.results().front().toTensor();
  if (slice_in(table->split.embedding->output) != nullptr) {
    remember(*table, columns);
    return true;
  }
  call.results().front() = gather_from_region(
      columns, -1, group_, GatheredGradient::equal, table->sizes());
  return true;
}

// Gathers the weight of a layer that returns full results for code that takes
// some of its rows: MultiheadAttention does, if queries are not the keys.
bool SplitKeeper::gather_rows(GatedCall& call) const {
  if (call.operation().operator_name().name != "aten::slice" || !is_in_model())
    return false;
  const WatchedSplit* const weight = find(call.arguments().front());
  if (weight == nullptr || !weight->split.product ||
      weight->split.product->is_rowwise ||
      slice_in(weight->split.product->output) != nullptr)
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

// Parameters that ranks use on slices of the sequence.
void SplitKeeper::share_gradients(GatedCall& call) const {
  if (!at::GradMode::is_enabled()) return;
  for (c10::IValue& value : call.arguments()) {
    const WatchedSplit* const watched = find(value);
    if (watched != nullptr && watched->split.sums_gradient &&
        value.toTensor().requires_grad())
      value = copy_to_region(value.toTensor(), group_);
  }
}

// Views of a slice are slices; any other result would be taken for that of the
// full parameter.
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
          "slice of shape {}, and tensor parallelism knows how to do only "
          "products with its transpose and embeddings on slices; leave module "
          "\"{}\" out of parallelize_plan",
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
  if (full.empty()) return;
  full.back() =
      weight.global_shape[static_cast<std::size_t>(*weight.split.dim)];
  last_slice_ = format(
      "layer \"{}\" is split over {} ranks, and returned {} where one process "
      "has {}",
      weight.split.module,
      group_.size(),
      output.sizes(),
      at::IntArrayRef(full));
}

void SplitKeeper::call(GatedCall& call) {
  if (is_in_formula()) return call.run();
  if (const std::optional<Product> product = product_in(call))
    return multiply(call, *product);
  if (look_up(call) || gather_rows(call)) return;
  share_gradients(call);
  require_slice(call);
}

}  // namespace accelerate::detail
