#include <accelerate/context_parallel.h>

#include <algorithm>
#include <utility>

#include <ATen/Functions.h>
#include <ATen/OpMathType.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "parallel/context/attention_scope.h"
#include "parallel/context/sequence_tensors.h"
#include "parallel/random_region.h"

namespace accelerate {

namespace {

using detail::format;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

std::int64_t length_of(
    const std::vector<at::Tensor>& buffers,
    const std::vector<std::int64_t>& dims,
    const ContextParallelOptions& options) {
  if (buffers.size() != dims.size()) {
    throw ConfigError(format(
        "[parallel] maybe_context_parallel must get one dimension per buffer, "
        "but got {} buffers and {} dimensions",
        buffers.size(),
        dims.size()));
  }
  std::optional<std::int64_t> length = options.sequence_length;
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    const at::Tensor& buffer = buffers[i];
    if (buffer.requires_grad()) {
      throw ConfigError(format(
          "[parallel] buffer {} requires a gradient, so it cannot be divided "
          "in place; pass only inputs and labels",
          i));
    }
    if (dims[i] < -buffer.dim() || dims[i] >= buffer.dim()) {
      throw ConfigError(format(
          "[parallel] buffer {} has {} dimensions, but its sequence is "
          "declared along dimension {}",
          i,
          buffer.dim(),
          dims[i]));
    }
    if (!length) length = buffer.size(dims[i]);
    if (*length == buffer.size(dims[i])) continue;
    throw ConfigError(format(
        "[parallel] buffer {} has {} positions along dimension {}, but the "
        "sequence has {}; all buffers must have the same length",
        i,
        buffer.size(dims[i]),
        dims[i],
        *length));
  }
  if (length) return *length;
  throw ConfigError(
      "[parallel] maybe_context_parallel got no buffers; pass the inputs and "
      "labels, or sequence_length if they are already cut");
}

void check_padding(
    const SequenceShards& shards,
    std::size_t num_buffers,
    const ContextParallelOptions& options) {
  if (!options.pad_values.empty() && options.pad_values.size() != num_buffers) {
    throw ConfigError(format(
        "[parallel] there must be one of pad_values per buffer, but there are "
        "{} for {} buffers",
        options.pad_values.size(),
        num_buffers));
  }
  if (shards.padded_length() == shards.length() || num_buffers == 0 ||
      !options.pad_values.empty())
    return;
  throw ConfigError(format(
      "[parallel] {} positions do not divide evenly among {} ranks; pass "
      "pad_values (for labels the ignore_index of the loss), or {} positions",
      shards.length(),
      shards.num_ranks(),
      shards.padded_length()));
}

// The mean over all ranks, from each rank's sum and count.
class MeanOverRanks : public torch::autograd::Function<MeanOverRanks> {
 public:
  static at::Tensor forward(
      AutogradContext* context,
      const at::Tensor& sum,
      const at::Tensor& count,
      const Group& group) {
    // Programs count labels on the host, too.
    const at::Tensor totals = at::stack(
        {sum.reshape({}).to(at::kDouble),
         count.reshape({}).to(
             sum.device(), at::kDouble, /*non_blocking=*/true)});
    if (group.size() > 1) group.all_reduce(totals);
    const at::Tensor tokens = totals[1], has_any = tokens > 0;
    const at::Tensor divisor = tokens.masked_fill(has_any.logical_not(), 1);
    context->saved_data["factor"] =
        at::full_like(divisor, group.size()) / divisor * has_any;
    return (totals[0] / divisor).to(sum.scalar_type());
  }

  static variable_list backward(
      AutogradContext* context,
      const variable_list& grads) {
    const at::ScalarType dtype = grads[0].scalar_type();
    const at::Tensor factor =
        context->saved_data["factor"].toTensor().to(at::toOpMathType(dtype));
    return {(grads[0] * factor).to(dtype), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor shift_labels(
    const at::Tensor& labels,
    std::int64_t dim,
    std::int64_t ignore_index) {
  if (dim < -labels.dim() || dim >= labels.dim()) {
    throw ConfigError(format(
        "[parallel] shift_labels() got a tensor of {} dimensions, and "
        "dimension {} of it; pass that of the sequence",
        labels.dim(),
        dim));
  }
  at::Tensor shifted = at::full_like(labels, ignore_index);
  const std::int64_t length = labels.size(dim);
  if (length > 1)
    shifted.narrow(dim, 0, length - 1).copy_(labels.narrow(dim, 1, length - 1));
  return shifted;
}

struct ContextParallelScope::State {
  State(Group ranks, SequenceShards cut)
      : group(std::move(ranks)), shards(cut) {}

  Group group;
  SequenceShards shards;
  /// Tensors to restore, each with its data for the whole sequence.
  std::vector<std::pair<at::Tensor, at::Tensor>> whole = {};
  std::optional<detail::AttentionScope> attention = std::nullopt;
};

ContextParallelScope::ContextParallelScope(
    const Group& group,
    const std::vector<at::Tensor>& buffers,
    const std::vector<std::int64_t>& buffer_seq_dims,
    const std::vector<at::Tensor>& no_restore_buffers,
    const ContextParallelOptions& options)
    : state_(std::make_unique<State>(
          group,
          SequenceShards(
              length_of(buffers, buffer_seq_dims, options),
              group.size(),
              options.cut))) {
  const SequenceShards& shards = state_->shards;
  check_padding(shards, buffers.size(), options);
  const auto is_among = [](const std::vector<at::Tensor>& tensors,
                           const at::Tensor& tensor) {
    return std::ranges::any_of(tensors, [&](const at::Tensor& other) {
      return other.is_same(tensor);
    });
  };
  for (const at::Tensor& tensor : no_restore_buffers) {
    if (is_among(buffers, tensor)) continue;
    throw ConfigError(
        "[parallel] a tensor of no_restore_buffers must be among the buffers, "
        "but is not; pass it in both");
  }
  if (group.size() > 1 || options.document_ids) {
    state_->attention.emplace(detail::DividedSequence{
        group,
        shards,
        options.exchange_heads.value_or(false),
        options.rotation.value_or(KeyValueRotation::allgather),
        options.document_ids});
  }
  if (group.size() == 1) return;
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    const at::Tensor& buffer = buffers[i];
    const double fill = options.pad_values.empty() ? 0 : options.pad_values[i];
    const at::Tensor whole = buffer.variable_data();
    if (!is_among(no_restore_buffers, buffer))
      state_->whole.emplace_back(buffer, whole);
    buffer.set_data(detail::local_positions(
        whole, buffer_seq_dims[i], shards, group.rank(), fill));
  }
  // Last, since the destructor, which leaves the region, does not run if this
  // constructor throws.
  detail::enter_random_region(
      state_.get(), detail::random_stream_of(Axis::context, group.rank()));
}

ContextParallelScope::ContextParallelScope(ContextParallelScope&&) noexcept =
    default;

ContextParallelScope::~ContextParallelScope() {
  if (!state_) return;
  detail::leave_random_region(state_.get());
  for (const auto& [buffer, whole] : state_->whole) buffer.set_data(whole);
}

const SequenceShards& ContextParallelScope::shards() const {
  return state_->shards;
}

at::Tensor ContextParallelScope::positions() const {
  return at::tensor(state_->shards.positions(state_->group.rank()), at::kLong);
}

at::Tensor ContextParallelScope::gather(
    const at::Tensor& tensor,
    std::int64_t dim) const {
  if (dim < -tensor.dim() || dim >= tensor.dim()) {
    throw ConfigError(format(
        "[parallel] gather() got a tensor of shape {}, and dimension {} of it; "
        "pass that of the sequence",
        tensor.sizes(),
        dim));
  }
  const at::NoGradGuard no_grad;
  return state_->group.size() == 1
      ? tensor.detach()
      : detail::gather_positions(
            tensor.detach(), dim, state_->group, state_->shards);
}

at::Tensor ContextParallelScope::mean(
    const at::Tensor& sum,
    const at::Tensor& count) const {
  if (sum.numel() != 1 || count.numel() != 1) {
    throw ConfigError(format(
        "[parallel] the sum and the count of mean() must be scalars, but have "
        "{} and {} values",
        sum.numel(),
        count.numel()));
  }
  return MeanOverRanks::apply(sum, count, state_->group);
}

}  // namespace accelerate
