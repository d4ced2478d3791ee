#include <ATen/Functions.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <accelerate/attention.h>
#include <accelerate/error.h>

#include "activations/tape.h"
#include "base/text/text.h"
#include "comm/autograd/all_to_all.h"
#include "parallel/context/attention_rules.h"
#include "parallel/context/head_shares.h"
#include "parallel/context/ring_attention.h"
#include "parallel/context/sequence_tensors.h"

namespace accelerate {

namespace {

using detail::HeadShare;

constexpr std::int64_t kHeads = 1;
constexpr std::int64_t kPositions = 2;

// Exchanges positions for heads, and back.
class HeadExchange {
 public:
  HeadExchange(Group group, const SequenceShards& shards)
      : route_{std::move(group), "exchanging heads", "attention heads"},
        shards_(shards),
        lengths_(
            static_cast<std::size_t>(route_.group.size()),
            shards.local_length()) {}

  // B x all heads x local positions x E -> B x own heads x length x E, in the
  // order of the sequence and without padding.
  [[nodiscard]] at::Tensor to_heads(
      const at::Tensor& tensor,
      const std::vector<std::int64_t>& counts) const {
    const at::Tensor joined = detail::all_to_all_autograd(
        tensor, route_, {kHeads, counts, kPositions, lengths_});
    std::vector<std::int64_t> order = shards_.restore();
    order.resize(static_cast<std::size_t>(shards_.length()));
    return joined.index_select(kPositions, on_device(order, tensor));
  }

  // The inverse, with zeros as padding.
  [[nodiscard]] at::Tensor to_positions(
      const at::Tensor& tensor,
      const std::vector<std::int64_t>& counts) const {
    std::vector<std::int64_t> order;
    for (int rank = 0; rank < route_.group.size(); ++rank) {
      for (const std::int64_t position : shards_.positions(rank))
        order.push_back(position);
    }
    const at::Tensor padded = at::constant_pad_nd(
        tensor, {0, 0, 0, shards_.padded_length() - shards_.length()});
    return detail::all_to_all_autograd(
        padded.index_select(kPositions, on_device(order, tensor)),
        route_,
        {kPositions, lengths_, kHeads, counts});
  }

 private:
  static at::Tensor on_device(
      const std::vector<std::int64_t>& index,
      const at::Tensor& like) {
    return at::tensor(index, at::kLong).to(like.device());
  }

  detail::RowRoute route_;
  SequenceShards shards_;
  std::vector<std::int64_t> lengths_;
};

// Keys or values with the heads of each rank one after another; heads that
// several ranks need appear several times, and their gradients are added up.
at::Tensor for_each_rank(
    const at::Tensor& tensor,
    const std::vector<HeadShare>& shares) {
  std::vector<std::int64_t> heads;
  for (const HeadShare& share : shares) {
    for (std::int64_t i = 0; i < share.key_count; ++i)
      heads.push_back(share.first_key + i);
  }
  if (static_cast<std::int64_t>(heads.size()) == tensor.size(kHeads))
    return tensor;
  return tensor.index_select(
      kHeads, at::tensor(heads, at::kLong).to(tensor.device()));
}

// The mask's rows and columns are those of the whole sequence, its heads those
// of this rank.
std::optional<at::Tensor> mask_of(
    const SequenceAttentionOptions& options,
    const HeadShare& share,
    std::int64_t num_heads) {
  const std::optional<at::Tensor>& mask = options.attn_mask;
  if (!mask || mask->dim() < 4 || mask->size(kHeads) == 1) return mask;
  if (mask->size(kHeads) != num_heads) {
    throw ConfigError(detail::format(
        "[parallel] attn_mask must have as many heads as the query, but has {} "
        "instead of {}",
        mask->size(kHeads),
        num_heads));
  }
  return mask->narrow(kHeads, share.first, share.count);
}

}  // namespace

at::Tensor ulysses_attention(
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    const Group& group,
    const SequenceShards& shards,
    const SequenceAttentionOptions& options) {
  if (query.dim() != 4 || key.dim() != 4 || value.dim() != 4) {
    throw ConfigError(
        "[parallel] tensors must have 4 dimensions to exchange heads: batch, "
        "heads, positions, elements");
  }
  detail::check_attention(query, key, value, options);
  detail::check_local_length(query.size(kPositions), group, shards);
  if (query.size(kHeads) < group.size()) {
    throw ConfigError(detail::format(
        "[parallel] attention has {} heads, which cannot be divided among {} "
        "ranks; use at most as many ranks, or context parallelism (cp_size) in "
        "place of sp_size",
        query.size(kHeads),
        group.size()));
  }
  const std::int64_t group_size = query.size(kHeads) / key.size(kHeads);
  const std::vector<HeadShare> shares =
      detail::divide_heads(query.size(kHeads), key.size(kHeads), group.size());
  std::vector<std::int64_t> counts, key_counts;
  for (const HeadShare& share : shares) {
    counts.push_back(share.count);
    key_counts.push_back(share.key_count);
  }
  const HeadShare& own = shares[static_cast<std::size_t>(group.rank())];
  const std::uint64_t seed = detail::dropout_seed(options, group);
  // Nothing below is recomputed, since messages cannot be replayed.
  const c10::impl::ExcludeDispatchKeyGuard unrecorded(detail::kRecordingKey);
  const HeadExchange exchange(group, shards);
  const at::Tensor queries = exchange.to_heads(query, counts);
  at::Tensor keys = exchange.to_heads(for_each_rank(key, shares), key_counts);
  at::Tensor values =
      exchange.to_heads(for_each_rank(value, shares), key_counts);
  if (!own.has_whole_groups(group_size)) {
    const at::Tensor index =
        at::tensor(own.key_of_each(group_size), at::kLong).to(key.device());
    keys = keys.index_select(kHeads, index);
    values = values.index_select(kHeads, index);
  }
  SequenceAttentionOptions local = options;
  local.attn_mask = mask_of(options, own, query.size(kHeads));
  const at::Tensor output = detail::attend_in_ring(
      queries,
      keys,
      values,
      Group(),
      SequenceShards(shards.length(), 1),
      local,
      options.first_head + own.first,
      seed);
  return exchange.to_positions(output, counts);
}

}  // namespace accelerate
