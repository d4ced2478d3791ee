#include "parallel/context/attention_rules.h"

#include <algorithm>
#include <limits>
#include <span>
#include <utility>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <c10/core/ScalarType.h>

#include <accelerate/error.h>

#include "base/text/text.h"

namespace accelerate::detail {

namespace {

std::string sizes_of(const at::Tensor& tensor) {
  std::vector<std::string> sizes;
  for (const std::int64_t size : tensor.sizes())
    sizes.push_back(std::to_string(size));
  return join(sizes, " x ");
}

// Padded positions use the last position's mask; their output is not used.
at::Tensor index_tensor(
    std::span<const std::int64_t> positions,
    std::int64_t length) {
  std::vector<std::int64_t> index(positions.begin(), positions.end());
  for (std::int64_t& position : index)
    position = std::min(position, length - 1);
  return at::tensor(index, at::kLong);
}

at::Tensor joined(const at::Tensor& mask, const at::Tensor& allowed) {
  if (!mask.defined()) return allowed;
  if (mask.scalar_type() == at::kBool) return mask.logical_and(allowed);
  return mask.masked_fill(
      allowed.logical_not(), -std::numeric_limits<double>::infinity());
}

}  // namespace

AttentionRules::AttentionRules(
    const SequenceAttentionOptions& options,
    const SequenceShards& shards,
    int rank,
    std::int64_t batch,
    std::int64_t num_heads,
    std::int64_t first_head,
    std::uint64_t seed)
    : query_positions_(shards.positions(rank)) {
  if (options.attn_mask) take_mask(*options.attn_mask, shards);
  if (options.document_ids)
    take_documents(*options.document_ids, shards.length());
  if (options.key_padding_mask)
    take_padding(*options.key_padding_mask, shards.length());
  if (options.dropout_p > 0)
    dropout_ =
        DropoutMask{options.dropout_p, seed, batch, num_heads, first_head};
}

void AttentionRules::take_mask(
    const at::Tensor& mask,
    const SequenceShards& shards) {
  at::Tensor whole = mask;
  if (whole.dim() == 3) whole = whole.unsqueeze(1);
  while (whole.dim() < 4) whole = whole.unsqueeze(0);
  const std::int64_t queries = whole.size(2), keys = whole.size(3);
  const auto is_whole = [&](std::int64_t size) {
    return size == shards.length() || size == shards.padded_length();
  };
  const bool is_local = queries == shards.local_length();
  if ((!is_local && queries != 1 && !is_whole(queries)) ||
      (keys != 1 && !is_whole(keys))) {
    throw ConfigError(format(
        "[parallel] attn_mask is {}, which does not fit a sequence of {} "
        "positions, {} of them on each rank; it must have one column per "
        "position of the whole sequence, and one row per position of the "
        "sequence or of this rank",
        sizes_of(mask),
        shards.length(),
        shards.local_length()));
  }
  // If both sizes are equal, one rank has the whole sequence.
  if (!is_local && queries != 1) {
    const at::Tensor index = index_tensor(query_positions_, queries);
    whole = whole.index_select(2, index.to(whole.device()));
  }
  mask_ = keys == 1
      ? whole.expand(
            {whole.size(0), whole.size(1), whole.size(2), shards.length()})
      : whole;
}

void AttentionRules::take_documents(
    const at::Tensor& ids,
    std::int64_t length) {
  documents_ = ids.dim() == 1 ? ids.unsqueeze(0) : ids;
  if (documents_.dim() != 2 || documents_.size(1) < length ||
      !c10::isIntegralType(ids.scalar_type(), /*includeBool=*/false)) {
    throw ConfigError(format(
        "[parallel] document_ids are {} of {}, but must be integers, one per "
        "position of the whole sequence, which has {}",
        sizes_of(ids),
        c10::toString(ids.scalar_type()),
        length));
  }
  const at::Tensor index = index_tensor(query_positions_, length);
  query_documents_ = documents_.index_select(1, index.to(documents_.device()));
}

void AttentionRules::take_padding(const at::Tensor& mask, std::int64_t length) {
  if (mask.dim() != 2 || mask.size(1) < length ||
      mask.scalar_type() != at::kBool) {
    throw ConfigError(format(
        "[parallel] key_padding_mask is {} of {}, but must be batch x length "
        "of bool, one per position of the whole sequence, which has {}",
        sizes_of(mask),
        c10::toString(mask.scalar_type()),
        length));
  }
  padding_ = mask.unsqueeze(1).unsqueeze(2);
}

BlockRules AttentionRules::of(
    const SequenceShards& shards,
    const VisibleTile& tile,
    int key_rank,
    at::Device device) const {
  BlockRules rules;
  if (!mask_.defined() && !documents_.defined() && !padding_.defined() &&
      !dropout_)
    return rules;
  std::vector<std::int64_t> keys = shards.positions(key_rank);
  keys.resize(static_cast<std::size_t>(tile.num_keys));
  const at::Tensor index = index_tensor(keys, shards.length());
  const auto of_keys = [&](const at::Tensor& whole, std::int64_t dim) {
    return whole.defined()
        ? whole.index_select(dim, index.to(whole.device())).to(device)
        : at::Tensor();
  };
  const at::Tensor mask = of_keys(mask_, 3), padding = of_keys(padding_, 3),
                   documents = of_keys(documents_, 1);
  const std::int64_t first = tile.first_query;
  if (mask.defined() || padding.defined() || documents.defined()) {
    rules.mask =
        [mask, padding, documents, first, device, own = query_documents_](
            std::int64_t begin, std::int64_t count) {
          at::Tensor rows = mask;
          if (mask.defined() && mask.size(2) > 1)
            rows = mask.narrow(2, first + begin, count);
          if (padding.defined()) rows = joined(rows, padding.logical_not());
          if (!documents.defined()) return rows;
          const at::Tensor queries =
              own.narrow(1, first + begin, count).to(device);
          const at::Tensor same =
              queries.unsqueeze(-1).eq(documents.unsqueeze(1)).unsqueeze(1);
          return joined(rows, same);
        };
  }
  if (dropout_) {
    rules.dropout = [dropout = *dropout_,
                     queries = query_positions_,
                     keys = std::move(keys),
                     first,
                     device](std::int64_t begin, std::int64_t count) {
      const std::span rows(
          queries.data() + first + begin, static_cast<std::size_t>(count));
      return dropout.factors(rows, keys).to(device);
    };
  }
  return rules;
}

void check_attention(
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    const SequenceAttentionOptions& options) {
  const auto refuse = [&](const std::string& reason) {
    throw ConfigError(format(
        "[parallel] attention over a divided sequence: {} (query {}, key {}, "
        "value {})",
        reason,
        sizes_of(query),
        sizes_of(key),
        sizes_of(value)));
  };
  if (query.size(0) != key.size(0) || query.size(0) != value.size(0) ||
      query.size(2) != key.size(2) || key.size(2) != value.size(2) ||
      key.size(1) != value.size(1) || query.size(3) != key.size(3))
    refuse(
        "sizes must agree except for the heads of the query and the elements "
        "of the value");
  if (query.scalar_type() != key.scalar_type() ||
      query.scalar_type() != value.scalar_type() || !query.is_floating_point())
    refuse("all three must have the same floating dtype");
  if (query.device() != key.device() || query.device() != value.device())
    refuse("all three must be on the same device");
  if (query.size(1) != key.size(1)) {
    if (!options.enable_gqa)
      refuse("keys have a different number of heads; set enable_gqa");
    if (key.size(1) == 0 || query.size(1) % key.size(1) != 0)
      refuse("heads of the query must be a multiple of those of the keys");
  }
  if (options.is_causal && options.attn_mask)
    refuse("is_causal and attn_mask exclude each other; leave one out");
  if (options.attn_mask && options.attn_mask->requires_grad())
    refuse(
        "attn_mask requires a gradient, which this attention does not "
        "compute; detach it");
  if (options.dropout_p < 0 || options.dropout_p > 1)
    refuse("dropout_p must be from 0 to 1");
}

}  // namespace accelerate::detail
