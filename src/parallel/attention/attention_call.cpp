#include "parallel/attention/attention_call.h"

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include <ATen/Functions.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>

#include <accelerate/attention.h>
#include <accelerate/error.h>

#include "activations/replaced_attention.h"
#include "base/text/text.h"
#include "comm/autograd/region.h"
#include "gate/watched_tensor.h"
#include "parallel/attention/causal_masks.h"
#include "parallel/attention/number_argument.h"
#include "parallel/attention/split_output.h"
#include "parallel/context/dropout_mask.h"
#include "parallel/context/sequence_tensors.h"

namespace accelerate::detail {

namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

// Returns keys or values of all positions, the appended ones last.
at::Tensor of_all_positions(const ProjectedPart& part) {
  at::Tensor all = part.own;
  if (part.sequence) {
    all = gather_positions(
        all.contiguous(), 0, part.sequence->group, part.sequence->shards);
  }
  if (part.extra.empty()) return all;
  std::vector<at::Tensor> items{all};
  items.insert(items.end(), part.extra.begin(), part.extra.end());
  return at::cat(items, 0);
}

// Positions x batch x columns as batch heads x positions x elements, for matrix
// products.
at::Tensor as_matrices(const at::Tensor& columns, std::int64_t head_size) {
  return columns.contiguous()
      .view({columns.size(0), -1, head_size})
      .transpose(0, 1);
}

// Columns as batch x heads x positions x elements.
at::Tensor by_head(const at::Tensor& columns, std::int64_t head_size) {
  return columns.unflatten(-1, {-1, head_size}).permute({1, 2, 0, 3});
}

bool is_autocast(const at::Tensor& tensor) {
  return at::autocast::is_autocast_enabled(tensor.device().type());
}

// Queries x keys, or batch x queries x keys: true where both are in the same
// document.
at::Tensor same_document(const DividedSequence& sequence) {
  const at::Tensor& ids = *sequence.document_ids;
  std::vector<std::int64_t> own =
      sequence.shards.positions(sequence.group.rank());
  for (std::int64_t& position : own)
    position = std::min(position, sequence.shards.length() - 1);
  const at::Tensor keys = ids.narrow(-1, 0, sequence.shards.length());
  const at::Tensor queries =
      keys.index_select(-1, at::tensor(own, at::kLong).to(ids.device()));
  return queries.unsqueeze(-1).eq(keys.unsqueeze(-2));
}

}  // namespace

AttentionCall::AttentionCall(
    const ProjectedPart& queries,
    const ProjectedPart& keys)
    : queries_(queries), keys_(keys) {}

at::Tensor AttentionCall::placeholder(
    at::IntArrayRef sizes,
    Stage stage,
    at::ScalarType dtype) {
  return make_placeholder(
      sizes,
      queries_.own.options().dtype(dtype),
      {shared_from_this(), static_cast<std::size_t>(stage), this},
      format(
          "[parallel] the attention weights of \"{}\" are computed once an "
          "operator reads them, and have no memory yet; on all ranks, call "
          "clone() on what the module returns, and access the memory of that",
          queries_.layer->name));
}

at::Tensor AttentionCall::scores(std::int64_t batch, std::int64_t num_keys) {
  batch_ = batch;
  num_keys_ = num_keys;
  return placeholder(
      {batch * queries_.layer->num_heads, queries_.query_rows, num_keys},
      Stage::scores,
      queries_.own.scalar_type());
}

void AttentionCall::take_mask(const at::Tensor& mask) {
  const at::Tensor flat = mask.dim() == 3 ? mask.squeeze(0) : mask;
  const std::int64_t rows = queries_.own.size(0);
  const auto fits = [](std::int64_t size, std::int64_t wanted) {
    return size == wanted || size == 1;
  };
  if (flat.dim() != 2 || !fits(flat.size(0), rows) ||
      !fits(flat.size(1), num_keys_)) {
    throw ConfigError(format(
        "[parallel] the attn_mask of \"{}\" is {}, but needs a row for each of "
        "{} queries of this rank and a column for each of {} keys",
        queries_.layer->name,
        mask.sizes(),
        rows,
        num_keys_));
  }
  at::Tensor added = flat.expand({rows, num_keys_});
  if (!added.is_floating_point()) added = added.to(queries_.own.scalar_type());
  mask_ = mask_.defined() ? mask_ + added : added;
}

// Batch x 1 x 1 x keys.
void AttentionCall::take_padding(const at::Tensor& mask) {
  const at::Tensor flat = mask.flatten(1).to(at::kBool);
  padding_ = padding_.defined() ? padding_.logical_or(flat) : flat;
}

void AttentionCall::call_on_scores(GatedCall& call) {
  const auto arguments = call.arguments();
  const at::Tensor scores = arguments[0].toTensor();
  const std::string& name = call.operation().operator_name().name;
  if (name == "aten::view") return call.run();
  if (name == "aten::add_") {
    take_mask(arguments[1].toTensor());
    return call.replace(scores);
  }
  if (name == "aten::masked_fill") {
    take_padding(arguments[1].toTensor());
    return call.replace(
        placeholder(scores.sizes(), Stage::scores, scores.scalar_type()));
  }
  if (name == "aten::softmax") {
    return call.replace(placeholder(
        scores.sizes(),
        Stage::weights,
        is_autocast(queries_.own) ? at::kFloat : scores.scalar_type()));
  }
  throw ConfigError(format(
      "[parallel] \"{}\" calls {} on its scores, which this LibTorch's "
      "torch::nn::MultiheadAttention was not known to do; set context and "
      "tensor to 1",
      queries_.layer->name,
      name));
}

bool AttentionCall::can_exchange() const {
  return keys_.sequence && keys_.extra.empty() &&
      queries_.own.size(0) == keys_.sequence->shards.local_length() &&
      !(mask_.defined() && mask_.requires_grad());
}

at::Tensor AttentionCall::weights_before_dropout() const {
  const std::int64_t size = queries_.layer->head_size;
  const at::Tensor queries =
      queries_.scale == 1 ? queries_.own : queries_.own * queries_.scale;
  at::Tensor scores = at::bmm(
      as_matrices(queries, size),
      as_matrices(of_all_positions(keys_), size).transpose(1, 2));
  if (mask_.defined()) {
    const bool is_summed = queries_.is_split && mask_.requires_grad();
    scores.add_(
        is_summed ? copy_to_region(mask_, queries_.layer->split->group)
                  : mask_);
  }
  at::Tensor each = scores.unflatten(0, {batch_, -1});
  if (padding_.defined()) {
    each = each.masked_fill(padding_.unsqueeze(1).unsqueeze(2), kMinusInfinity);
  }
  if (keys_.sequence && keys_.sequence->document_ids) {
    const at::Tensor hidden = same_document(*keys_.sequence).logical_not();
    each = each.masked_fill(
        at::constant_pad_nd(
            hidden.dim() == 3 ? hidden.unsqueeze(1) : hidden,
            {0, num_keys_ - hidden.size(-1)}),
        kMinusInfinity);
  }
  return each.flatten(0, 1).softmax(-1);
}

// Decides here how to attend: all masks are known, and a recomputed forward
// repeats only this operator's random numbers.
void AttentionCall::drop(GatedCall& call) {
  const at::Tensor view = call.arguments()[0].toTensor();
  exchanges_ = can_exchange();
  if (exchanges_) {
    const bool trains = call.arguments()[2].toBool();
    dropout_p_ = trains ? call.arguments()[1].toDouble() : 0;
    seed_ = dropout_seed({.dropout_p = dropout_p_}, keys_.sequence->group);
    return call.replace(view);
  }
  call.arguments()[0] = weights_before_dropout();
  call.run();
  c10::IValue& result = call.results().front();
  weights_ = result.toTensor();
  result = view;
}

at::Tensor AttentionCall::attend_by_exchange(
    const ProjectedPart& values) const {
  const DividedSequence& sequence = *keys_.sequence;
  SequenceAttentionOptions options{
      .document_ids = sequence.document_ids,
      .dropout_p = dropout_p_,
      .dropout_seed = seed_,
      .first_head = queries_.heads().first,
      .scale = queries_.scale,
      .rotation = sequence.rotation};
  if (padding_.defined()) options.key_padding_mask = padding_;
  if (mask_.defined()) {
    options.is_causal =
        queries_.layer->causal_masks->is_causal(mask_, sequence);
    if (!options.is_causal) {
      // An exchange of heads needs the rows of all queries.
      options.attn_mask = sequence.exchange_heads
          ? gather_positions(
                mask_.contiguous(), 0, sequence.group, sequence.shards)
          : mask_;
    }
  }
  const auto attention =
      sequence.exchange_heads ? &ulysses_attention : &ring_attention;
  const auto cast = [&](const at::Tensor& own) {
    return cast_by_autocast(by_head(own, queries_.layer->head_size));
  };
  return attention(
      cast(queries_.own),
      cast(keys_.own),
      cast(values.own),
      sequence.group,
      sequence.shards,
      options);
}

// The product of weights and values.
void AttentionCall::attend(GatedCall& call) {
  const ProjectedPart* const values = Projection::find(call.arguments()[1]);
  const std::int64_t size = queries_.layer->head_size;
  if (values == nullptr) {
    throw ConfigError(format(
        "[parallel] \"{}\" got values that are not projected like its keys; "
        "set context and tensor to 1",
        queries_.layer->name));
  }
  at::Tensor output = exchanges_
      ? attend_by_exchange(*values).flatten(0, 1)
      : at::bmm(weights_, as_matrices(of_all_positions(*values), size));
  if (!queries_.is_split) return call.replace(std::move(output));
  const std::int64_t positions = output.size(1);
  call.replace(SplitOutput::placeholder(
      queries_.layer,
      output.transpose(0, 1).contiguous().view({positions, batch_, -1}),
      queries_.query_rows));
}

at::Tensor AttentionCall::weights() const {
  if (!exchanges_) return weights_.unflatten(0, {batch_, -1});
  const at::Tensor all = weights_before_dropout().unflatten(0, {batch_, -1});
  if (dropout_p_ == 0) return all;
  const SequenceShards& shards = keys_.sequence->shards;
  const std::vector<std::int64_t> own =
      shards.positions(keys_.sequence->group.rank());
  std::vector<std::int64_t> keys;
  for (std::int64_t key = 0; key < num_keys_; ++key) keys.push_back(key);
  const ComputedHeads heads = queries_.heads();
  const DropoutMask mask{dropout_p_, seed_, batch_, heads.count, heads.first};
  return all * mask.factors(own, keys).to(all.device());
}

at::Tensor AttentionCall::returned(Stage stage) const {
  const bool is_each = stage == Stage::weights;
  at::Tensor all = is_each ? weights() : weights().sum(1);
  if (queries_.is_split) {
    const SplitHeads& split = *queries_.layer->split;
    const bool is_sliced = queries_.own.size(0) != queries_.query_rows;
    if (is_each) {
      all = gather_from_region(
          all,
          1,
          split.group,
          is_sliced ? GatheredGradient::partial : GatheredGradient::equal,
          split.columns(1));
      if (is_sliced) {
        const auto begins =
            slice_begins(queries_.own.size(0), split.group.size());
        all = all.narrow(
            2,
            begins[static_cast<std::size_t>(split.group.rank())],
            queries_.query_rows);
      }
    } else {
      all = is_sliced ? reduce_scatter_to_region(all, 1, split.group)
                      : reduce_from_region(all, split.group);
    }
  }
  return stage == Stage::averaged ? all / divisor_ : all;
}

// Replaces an operator's placeholder arguments with the weights.
void AttentionCall::read(GatedCall& call) {
  const auto made = [this](const c10::IValue& value) -> c10::IValue {
    const TensorWatch* const watch = find_watch(value, this);
    if (watch == nullptr) return value;
    const at::Tensor view = value.toTensor();
    return returned(static_cast<Stage>(watch->unit))
        .to(view.scalar_type())
        .contiguous()
        .as_strided(view.sizes(), view.strides(), view.storage_offset());
  };
  for (c10::IValue& value : call.arguments()) {
    if (value.isTensorList()) {
      std::vector<at::Tensor> items;
      for (const c10::IValue& item : value.toListRef())
        items.push_back(made(item).toTensor());
      value = std::move(items);
    } else {
      value = made(value);
    }
  }
  call.run();
}

void AttentionCall::call_on_weights(GatedCall& call, Stage stage) {
  const std::string& name = call.operation().operator_name().name;
  const auto arguments = call.arguments();
  const bool is_first = find_watch(arguments[0], this) != nullptr;
  if (is_first && stage == Stage::weights) {
    const at::Tensor view = arguments[0].toTensor();
    if (name == "aten::view") return call.run();
    if (name == "aten::dropout") return drop(call);
    if (name == "aten::bmm") return attend(call);
    if (name == "aten::sum" && view.dim() == 4 &&
        call.operation().operator_name().overload_name == "dim_IntList" &&
        arguments[1].toIntVector() == std::vector<std::int64_t>{1} &&
        !arguments[2].toBool() && arguments[3].isNone()) {
      return call.replace(placeholder(
          {view.size(0), view.size(2), view.size(3)},
          Stage::summed,
          view.scalar_type()));
    }
  }
  if (is_first && stage == Stage::summed && name == "aten::div" &&
      is_number(arguments[1])) {
    const at::Tensor view = arguments[0].toTensor();
    divisor_ = number_of(arguments[1]);
    return call.replace(
        placeholder(view.sizes(), Stage::averaged, view.scalar_type()));
  }
  read(call);
}

void AttentionCall::call(GatedCall& call) {
  Stage stage = Stage::averaged;
  for (const c10::IValue& value : call.arguments()) {
    const TensorWatch* const watch = find_watch(value, this);
    if (watch == nullptr) continue;
    stage = static_cast<Stage>(watch->unit);
    break;
  }
  if (stage == Stage::scores) return call_on_scores(call);
  call_on_weights(call, stage);
}

}  // namespace accelerate::detail
