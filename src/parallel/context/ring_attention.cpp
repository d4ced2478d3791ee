#include "parallel/context/ring_attention.h"

#include <cmath>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/custom_function.h>

#include <accelerate/error.h>

#include "activations/tape.h"
#include "parallel/context/attention_rules.h"
#include "parallel/context/block_attention.h"
#include "parallel/context/block_exchange.h"
#include "parallel/context/sequence_tensors.h"
#include "parallel/context/visible_tiles.h"

namespace accelerate {

namespace {

using detail::AttentionBlock;
using detail::BlockOutput;
using detail::VisibleTile;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// What backward needs besides tensors, which autograd saves.
struct RingCall final : torch::CustomClassHolder {
  RingCall(Group ranks, SequenceShards cut)
      : group(std::move(ranks)), shards(cut) {}

  Group group;
  SequenceShards shards;
  bool is_causal = false;
  double scale = 1;
  KeyValueRotation rotation = KeyValueRotation::allgather;
  detail::AttentionRules rules = {};

  [[nodiscard]] std::vector<VisibleTile> tiles(int owner) const {
    return detail::visible_tiles(shards, group.rank(), owner, is_causal);
  }

  [[nodiscard]] std::function<std::int64_t(int, int)> num_positions() const {
    return [shards = shards, is_causal = is_causal](int reader, int owner) {
      return detail::num_visible_keys(shards, reader, owner, is_causal);
    };
  }

  [[nodiscard]] AttentionBlock block_of(
      const VisibleTile& tile,
      int owner,
      const at::Tensor& query,
      const std::vector<at::Tensor>& key_value) const {
    return {
        query.narrow(2, tile.first_query, tile.num_queries),
        key_value[0].narrow(2, 0, tile.num_keys),
        key_value[1].narrow(2, 0, tile.num_keys),
        scale,
        tile.is_causal,
        rules.of(shards, tile, owner, query.device())};
  }
};

at::Tensor rows_of(const at::Tensor& tensor, const VisibleTile& tile) {
  return tensor.narrow(2, tile.first_query, tile.num_queries);
}

// Zeros of shape B x H x L x E, laid out as B x L x H x E like the results of
// LibTorch's fused kernels, so that joining the heads of an output, or sending
// a gradient, needs no copy.
at::Tensor zeros_by_position(
    at::IntArrayRef sizes,
    const at::TensorOptions& options) {
  return at::zeros({sizes[0], sizes[2], sizes[1], sizes[3]}, options)
      .transpose(1, 2);
}

// Adds `part` to the rows of `sum` from `first` on. An undefined sum stands for
// `num_rows` rows of 0; `part` becomes the sum if it has that many rows.
void add_rows(
    at::Tensor& sum,
    std::int64_t num_rows,
    std::int64_t first,
    const at::Tensor& part) {
  if (!sum.defined() && part.size(2) == num_rows) {
    sum = part;
    return;
  }
  if (!sum.defined()) {
    sum = zeros_by_position(
        {part.size(0), part.size(1), num_rows, part.size(3)}, part.options());
  }
  sum.narrow(2, first, part.size(2)).add_(part);
}

BlockOutput attend_around(
    const RingCall& call,
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value) {
  const auto options =
      query.options().dtype(detail::accumulation_dtype(query.scalar_type()));
  const BlockOutput whole{
      zeros_by_position(
          {query.size(0), query.size(1), query.size(2), value.size(3)},
          options),
      at::full(
          {query.size(0), query.size(1), query.size(2)},
          -std::numeric_limits<double>::infinity(),
          options)};
  detail::BlockExchange exchange(
      call.group, {key, value}, call.rotation, call.num_positions());
  for (int step = 0; step < call.group.size(); ++step) {
    const int owner = exchange.owner_at(step);
    const std::vector<at::Tensor>& key_value = exchange.block_at(step);
    for (const VisibleTile& tile : call.tiles(owner)) {
      detail::merge_into(
          {rows_of(whole.output, tile), rows_of(whole.logsumexp, tile)},
          detail::attend(call.block_of(tile, owner, query, key_value)));
    }
  }
  exchange.finish();
  return whole;
}

// Adds the gradients of this rank's queries to `grad_query`, and returns those
// of the keys and values that were read; undefined if none were.
std::vector<at::Tensor> backward_of_block(
    const RingCall& call,
    int owner,
    const at::Tensor& query,
    const std::vector<at::Tensor>& key_value,
    const at::Tensor& grad_output,
    const BlockOutput& whole,
    at::Tensor& grad_query) {
  std::vector<at::Tensor> sums(2);
  for (const VisibleTile& tile : call.tiles(owner)) {
    const detail::BlockGradients gradients = detail::attend_backward(
        call.block_of(tile, owner, query, key_value),
        rows_of(grad_output, tile),
        {rows_of(whole.output, tile), rows_of(whole.logsumexp, tile)});
    add_rows(grad_query, query.size(2), tile.first_query, gradients.query);
    add_rows(sums[0], key_value[0].size(2), 0, gradients.key);
    add_rows(sums[1], key_value[1].size(2), 0, gradients.value);
  }
  return sums;
}

// Returns the gradient of this rank's keys or values, given that of the ones it
// reads itself (all but padding).
at::Tensor own_gradient(
    const at::Tensor& read,
    const at::Tensor& block,
    at::ScalarType dtype) {
  if (read.defined() && read.size(2) == block.size(2)) return read;
  at::Tensor own =
      zeros_by_position(block.sizes(), block.options().dtype(dtype));
  if (read.defined()) own.narrow(2, 0, read.size(2)).add_(read);
  return own;
}

variable_list backward_around(
    const RingCall& call,
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    const BlockOutput& whole,
    const at::Tensor& grad_output) {
  const at::ScalarType dtype = query.scalar_type();
  const at::ScalarType summed = detail::accumulation_dtype(dtype);
  at::Tensor grad_query;
  std::vector<at::Tensor> own;
  std::optional<detail::GradientExchange> gradients;
  detail::BlockExchange exchange(
      call.group, {key, value}, call.rotation, call.num_positions());
  for (int step = 0; step < call.group.size(); ++step) {
    const int owner = exchange.owner_at(step);
    const std::vector<at::Tensor>& key_value = exchange.block_at(step);
    std::vector<at::Tensor> sums = backward_of_block(
        call, owner, query, key_value, grad_output, whole, grad_query);
    if (step > 0) {
      gradients->contribute(step, std::move(sums));
      continue;
    }
    own = {
        own_gradient(sums[0], key, summed),
        own_gradient(sums[1], value, summed)};
    gradients.emplace(call.group, own, call.num_positions());
  }
  exchange.finish();
  gradients->finish();
  if (!grad_query.defined())
    grad_query = at::zeros(query.sizes(), query.options().dtype(summed));
  return {grad_query.to(dtype), own[0].to(dtype), own[1].to(dtype)};
}

class RingAttention : public torch::autograd::Function<RingAttention> {
 public:
  static at::Tensor forward(
      AutogradContext* context,
      const at::Tensor& query,
      const at::Tensor& key,
      const at::Tensor& value,
      const c10::intrusive_ptr<RingCall>& call) {
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(
        c10::autocast_dispatch_keyset);
    const BlockOutput whole = attend_around(*call, query, key, value);
    at::Tensor output = whole.output.to(query.scalar_type());
    context->saved_data["call"] = c10::IValue::make_capsule(call);
    context->save_for_backward({query, key, value, output, whole.logsumexp});
    return output;
  }

  static variable_list backward(
      AutogradContext* context,
      const variable_list& grads) {
    if (at::GradMode::is_enabled()) {
      throw Error(
          "[parallel] attention over a divided sequence does not support "
          "second gradients; leave out create_graph");
    }
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(
        c10::autocast_dispatch_keyset);
    const auto call = c10::static_intrusive_pointer_cast<RingCall>(
        context->saved_data["call"].toCapsule());
    const variable_list saved = context->get_saved_variables();
    variable_list result = backward_around(
        *call, saved[0], saved[1], saved[2], {saved[3], saved[4]}, grads[0]);
    result.emplace_back();
    return result;
  }
};

}  // namespace

namespace detail {

at::Tensor attend_in_ring(
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    const Group& group,
    const SequenceShards& shards,
    const SequenceAttentionOptions& options,
    std::int64_t first_head,
    std::uint64_t seed) {
  auto call = c10::make_intrusive<RingCall>(group, shards);
  call->is_causal = options.is_causal;
  call->rotation = options.rotation;
  call->scale =
      options.scale.value_or(1 / std::sqrt(static_cast<double>(query.size(3))));
  call->rules = AttentionRules(
      options,
      shards,
      group.rank(),
      query.size(0),
      query.size(1),
      first_head,
      seed);
  // A recomputed segment recomputes the three inputs, but keeps the output
  // rather than exchange keys and values a third time.
  const c10::impl::ExcludeDispatchKeyGuard unrecorded(kRecordingKey);
  return RingAttention::apply(query, key, value, call);
}

}  // namespace detail

at::Tensor ring_attention(
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    const Group& group,
    const SequenceShards& shards,
    const SequenceAttentionOptions& options) {
  const at::Tensor queries = detail::with_heads(query);
  const at::Tensor keys = detail::with_heads(key);
  const at::Tensor values = detail::with_heads(value);
  detail::check_attention(queries, keys, values, options);
  detail::check_local_length(queries.size(2), group, shards);
  const at::Tensor output = detail::attend_in_ring(
      queries,
      keys,
      values,
      group,
      shards,
      options,
      options.first_head,
      detail::dropout_seed(options, group));
  if (query.dim() == 4) return output;
  return query.dim() == 3 ? output.squeeze(1) : output.squeeze(0).squeeze(0);
}

}  // namespace accelerate
