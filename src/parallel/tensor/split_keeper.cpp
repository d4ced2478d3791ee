#include "parallel/tensor/split_keeper.h"

#include <algorithm>
#include <span>
#include <utility>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/function.h>

#include <accelerate/error.h>

#include "activations/tape.h"
#include "base/text.h"
#include "comm/autograd/region.h"
#include "gate/watched_tensor.h"

namespace accelerate::detail {

namespace {

// Whether autograd's own formulas call an operator, on tensors that a forward
// saved: they need no collectives, which have formulas of their own. A forward
// that is recomputed inside of a backward does.
bool is_in_formula() {
  return torch::autograd::get_current_node() != nullptr &&
      !c10::impl::tls_is_dispatch_key_excluded(kRecordingKey);
}

bool is_factor_one(const c10::IValue& value) {
  return value.isScalar() && value.toScalar().equal(1);
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

void SplitKeeper::end_forward() { --num_forwards_; }

void SplitKeeper::abandon_forward() { num_forwards_ = 0; }

const WatchedSplit* SplitKeeper::find(const c10::IValue& value) const {
  const TensorWatch* const watch = find_watch(value, this);
  return watch == nullptr ? nullptr : &splits_[watch->unit];
}

bool SplitKeeper::is_transposed(const c10::IValue& value) const {
  const WatchedSplit* const weight = find(value);
  if (weight == nullptr || weight->local_shape.size() != 2) return false;
  const at::Tensor& tensor = value.toTensor();
  const std::int64_t columns = weight->local_shape[1];
  return tensor.dim() == 2 && tensor.storage_offset() == 0 &&
      tensor.size(0) == columns && tensor.size(1) == weight->local_shape[0] &&
      tensor.strides() == at::IntArrayRef({1, columns});
}

// The product with a split weight that an operator is.
std::optional<SplitKeeper::Product> SplitKeeper::product_in(
    GatedCall& call) const {
  const std::span<c10::IValue> arguments = call.arguments();
  const auto product_with = [&](std::size_t at) -> const WatchedSplit* {
    const WatchedSplit* const weight = find(arguments[at]);
    return weight != nullptr && weight->split.product ? weight : nullptr;
  };
  if (is_operator(call, "aten::linear")) {
    const WatchedSplit* const weight = product_with(1);
    if (weight == nullptr ||
        arguments[1].toTensor().sizes() !=
            at::IntArrayRef(weight->local_shape)) {
      return std::nullopt;
    }
    return Product{
        weight,
        0,
        arguments[1].toTensor().t(),
        arguments[2].toOptional<at::Tensor>().value_or(at::Tensor())};
  }
  if (is_operator(call, "aten::addmm")) {
    const WatchedSplit* const weight = product_with(2);
    if (weight == nullptr || !is_transposed(arguments[2]) ||
        !is_factor_one(arguments[3]) || !is_factor_one(arguments[4])) {
      return std::nullopt;
    }
    return Product{weight, 1, arguments[2].toTensor(), arguments[0].toTensor()};
  }
  if (is_operator(call, "aten::matmul") || is_operator(call, "aten::mm")) {
    const WatchedSplit* const weight = product_with(1);
    if (weight == nullptr || !is_transposed(arguments[1])) return std::nullopt;
    return Product{weight, 0, arguments[1].toTensor()};
  }
  return std::nullopt;
}

at::Tensor SplitKeeper::input_of(
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
      return input;
    }
    require(
        weight.global_shape[1],
        "if the input is a slice already, leave input_layouts out");
    return slice_to_region(input, -1, group_);
  }
  if (const accelerate::Shard* const slice = slice_in(how.input)) {
    return gather_from_region(
        input, slice->dim, group_, GatheredGradient::partial);
  }
  require(
      weight.global_shape[1],
      "gather the result of the layer before it (output_layouts Replicate), or "
      "say in input_layouts how it is split");
  return copy_to_region(input, group_);
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

// This rank's heads of several projections, of which it has consecutive rows.
at::Tensor SplitKeeper::own_heads(
    const at::Tensor& rows,
    const WatchedSplit& parameter,
    const SplitProduct& product) const {
  // Messages cannot be replayed.
  const c10::impl::ExcludeDispatchKeyGuard unrecorded(kRecordingKey);
  return exchange_rows(
      rows, group_, parameter.begins, rows_by_head(product, group_.size()));
}

at::Tensor SplitKeeper::multiply_by_heads(
    const at::Tensor& input,
    const Product& product) const {
  const WatchedSplit& weight = *product.weight;
  const SplitProduct& how = *weight.split.product;
  std::optional<at::Tensor> bias;
  if (product.bias.defined()) bias = own_heads(product.bias, weight, how);
  return at::linear(
      input, own_heads(product.transposed.t(), weight, how), bias);
}

// Linear layers add their biases by themselves where inputs are batches of
// matrices.
void SplitKeeper::take_heads_of_biases(GatedCall& call) const {
  if (!is_in_model()) return;
  for (c10::IValue& value : call.arguments()) {
    const WatchedSplit* const bias = find(value);
    if (bias != nullptr && bias->split.bias_of)
      value = own_heads(value.toTensor(), *bias, *bias->split.bias_of);
  }
}

void SplitKeeper::multiply(GatedCall& call, const Product& product) {
  const WatchedSplit& weight = *product.weight;
  const SplitProduct& how = *weight.split.product;
  const at::Tensor input =
      input_of(weight, call.arguments()[product.input_at].toTensor());
  // A local bias belongs to local columns; any other is added once, to the
  // result of all ranks.
  const bool returns_slice = !how.is_rowwise && slice_in(how.output) != nullptr;
  if (returns_slice && !how.projections.empty()) {
    at::Tensor heads = multiply_by_heads(input, product);
    remember(weight, heads);
    return call.replace(std::move(heads));
  }
  if (returns_slice) {
    call.arguments()[product.input_at] = input;
    call.run();
    remember(weight, call.results().front().toTensor());
    return;
  }
  at::Tensor result = output_of(weight, at::matmul(input, product.transposed));
  if (product.bias.defined()) {
    at::Tensor bias = product.bias;
    const WatchedSplit* const watched = find(bias);
    if (watched != nullptr && watched->split.sums_gradient)
      bias = copy_to_region(bias, group_);
    result = result + bias.to(result.scalar_type());
  }
  call.replace(std::move(result));
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
  if (call.operation().operator_name().name != "aten::slice" ||
      !is_in_model())
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
  take_heads_of_biases(call);
  share_gradients(call);
  require_slice(call);
}

}  // namespace accelerate::detail
