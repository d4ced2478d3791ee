#include "parallel/context/block_attention.h"

#include <algorithm>
#include <limits>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

namespace accelerate::detail {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
// Number of scores computed at once without a fused kernel, unless one row of
// all heads has more.
constexpr std::int64_t kMostScores = std::int64_t{1} << 22;

std::int64_t group_size(const AttentionBlock& block) {
  return block.query.size(1) / block.key.size(1);
}

// B x H x ... as B x key heads x query heads per key head x ...
at::Tensor by_key_head(const at::Tensor& tensor, std::int64_t group) {
  return tensor.unflatten(1, {tensor.size(1) / group, group});
}

// LibTorch's fused CPU kernel takes blocks without rules.
bool has_fused_kernel(const AttentionBlock& block) {
  return !block.rules.has_any() && block.query.is_cpu() &&
      block.query.size(-1) == block.value.size(-1) && block.query.numel() > 0 &&
      block.key.numel() > 0;
}

// ---- The fused kernel, once per query head of those that share a key head.

// The kernel takes any strides of positions, heads and batches, but needs the
// elements of a head to be contiguous.
at::Tensor with_dense_rows(const at::Tensor& tensor) {
  return tensor.stride(-1) == 1 && tensor.stride(-2) >= tensor.size(-1)
      ? tensor
      : tensor.contiguous();
}

BlockOutput attend_fused(const AttentionBlock& block) {
  const std::int64_t group = group_size(block);
  const at::Tensor queries = by_key_head(with_dense_rows(block.query), group);
  const at::Tensor key = with_dense_rows(block.key);
  const at::Tensor value = with_dense_rows(block.value);
  std::vector<at::Tensor> outputs, sums;
  for (std::int64_t i = 0; i < group; ++i) {
    auto [output, sum] = at::_scaled_dot_product_flash_attention_for_cpu(
        queries.select(2, i),
        key,
        value,
        0.0,
        block.is_causal,
        std::nullopt,
        block.scale);
    outputs.push_back(std::move(output));
    sums.push_back(std::move(sum));
  }
  if (group == 1) return {outputs[0], sums[0]};
  return {
      at::stack(outputs, 2).flatten(1, 2), at::stack(sums, 2).flatten(1, 2)};
}

BlockGradients attend_backward_fused(
    const AttentionBlock& block,
    const at::Tensor& grad_output,
    const BlockOutput& whole) {
  const std::int64_t group = group_size(block);
  const at::ScalarType dtype = accumulation_dtype(block.query.scalar_type());
  const at::Tensor queries = by_key_head(with_dense_rows(block.query), group);
  const at::Tensor keys = with_dense_rows(block.key);
  const at::Tensor values = with_dense_rows(block.value);
  const at::Tensor grads = by_key_head(with_dense_rows(grad_output), group);
  const at::Tensor outputs = by_key_head(
      with_dense_rows(whole.output.to(block.query.scalar_type())), group);
  const at::Tensor sums = by_key_head(whole.logsumexp, group);
  std::vector<at::Tensor> query;
  at::Tensor key, value;
  for (std::int64_t i = 0; i < group; ++i) {
    const auto [grad_query, grad_key, grad_value] =
        at::_scaled_dot_product_flash_attention_for_cpu_backward(
            grads.select(2, i),
            queries.select(2, i),
            keys,
            values,
            outputs.select(2, i),
            sums.select(2, i).contiguous(),
            0.0,
            block.is_causal,
            std::nullopt,
            block.scale);
    query.push_back(grad_query.to(dtype));
    key = key.defined() ? key.add_(grad_key) : grad_key.to(dtype);
    value = value.defined() ? value.add_(grad_value) : grad_value.to(dtype);
  }
  return {
      group == 1 ? query[0] : at::stack(query, 2).flatten(1, 2), key, value};
}

// ---- Matrix products, some rows at a time.

struct RowRange {
  std::int64_t first;
  std::int64_t count;
};

std::vector<RowRange> rows_of(const AttentionBlock& block) {
  const std::int64_t per_row = std::max<std::int64_t>(
      1, block.query.size(0) * block.query.size(1) * block.key.size(2));
  const std::int64_t step = std::max<std::int64_t>(1, kMostScores / per_row);
  std::vector<RowRange> all;
  const std::int64_t end = block.query.size(2);
  for (std::int64_t first = 0; first < end; first += step)
    all.push_back({first, std::min(step, end - first)});
  return all;
}

// Queries, scores and dropout of some rows of a block; scores are B x key heads
// x query heads per key head x rows x keys.
class RowScores {
 public:
  explicit RowScores(const AttentionBlock& block)
      : block_(block),
        group_(group_size(block)),
        dtype_(accumulation_dtype(block.query.scalar_type())),
        key_(block.key.to(dtype_).unsqueeze(2)) {}

  at::Tensor scores(const RowRange& rows) const {
    at::Tensor scores =
        at::matmul(query(rows) * block_.scale, key_.transpose(-2, -1));
    if (block_.rules.mask) {
      const at::Tensor mask =
          grouped(block_.rules.mask(rows.first, rows.count));
      if (mask.scalar_type() == at::kBool) {
        scores.masked_fill_(mask.logical_not(), -kInfinity);
      } else {
        scores.add_(mask.to(dtype_));
      }
    }
    if (block_.is_causal) {
      scores.masked_fill_(
          at::ones(
              {rows.count, key_.size(-2)}, scores.options().dtype(at::kBool))
              .triu_(rows.first + 1),
          -kInfinity);
    }
    return scores;
  }

  /// Undefined without dropout.
  at::Tensor dropout(const RowRange& rows) const {
    if (!block_.rules.dropout) return {};
    return grouped(block_.rules.dropout(rows.first, rows.count)).to(dtype_);
  }

  at::Tensor query(const RowRange& rows) const {
    return narrowed(block_.query, rows);
  }

  /// Rows of a tensor with the queries' heads, in the dtype of accumulation.
  at::Tensor narrowed(const at::Tensor& tensor, const RowRange& rows) const {
    return by_key_head(
        tensor.narrow(2, rows.first, rows.count).to(dtype_), group_);
  }

  [[nodiscard]] const at::Tensor& key() const { return key_; }

 private:
  // Divides the heads of B x H x rows x keys, any of which may be 1.
  at::Tensor grouped(const at::Tensor& tensor) const {
    return tensor.size(1) == 1 ? tensor.unsqueeze(2)
                               : by_key_head(tensor, group_);
  }

  const AttentionBlock& block_;
  std::int64_t group_;
  at::ScalarType dtype_;
  at::Tensor key_;
};

BlockOutput attend_in_rows(const AttentionBlock& block) {
  const RowScores rows_of_block(block);
  const at::Tensor value =
      block.value.to(rows_of_block.key().scalar_type()).unsqueeze(2);
  std::vector<at::Tensor> outputs, sums;
  for (const RowRange& rows : rows_of(block)) {
    at::Tensor weights = rows_of_block.scores(rows);
    at::Tensor highest = weights.amax(-1, /*keepdim=*/true);
    highest.masked_fill_(highest == -kInfinity, 0);
    weights.sub_(highest).exp_();
    const at::Tensor sum = weights.sum(-1, /*keepdim=*/true);
    if (const at::Tensor dropout = rows_of_block.dropout(rows);
        dropout.defined())
      weights.mul_(dropout);
    outputs.push_back(at::matmul(weights, value)
                          .div_(sum.masked_fill(sum == 0, 1))
                          .flatten(1, 2));
    sums.push_back(sum.log().add_(highest).squeeze(-1).flatten(1, 2));
  }
  return {at::cat(outputs, 2), at::cat(sums, 2)};
}

BlockGradients attend_backward_in_rows(
    const AttentionBlock& block,
    const at::Tensor& grad_output,
    const BlockOutput& whole) {
  const RowScores rows_of_block(block);
  const at::Tensor& key = rows_of_block.key();
  const at::Tensor value = block.value.to(key.scalar_type()).unsqueeze(2);
  std::vector<at::Tensor> grad_query;
  at::Tensor grad_key = at::zeros_like(key.squeeze(2));
  at::Tensor grad_value = at::zeros_like(value.squeeze(2));
  for (const RowRange& rows : rows_of(block)) {
    const at::Tensor grad = rows_of_block.narrowed(grad_output, rows);
    const at::Tensor output = rows_of_block.narrowed(whole.output, rows);
    at::Tensor sum = rows_of_block.narrowed(whole.logsumexp, rows);
    sum = sum.masked_fill(sum == -kInfinity, kInfinity).unsqueeze(-1);
    const at::Tensor weights = rows_of_block.scores(rows).sub_(sum).exp_();
    const at::Tensor dropout = rows_of_block.dropout(rows);
    at::Tensor grad_weights = at::matmul(grad, value.transpose(-2, -1));
    if (dropout.defined()) grad_weights.mul_(dropout);
    const at::Tensor grad_scores =
        grad_weights.sub_((grad * output).sum(-1, /*keepdim=*/true))
            .mul_(weights)
            .mul_(block.scale);
    const at::Tensor kept = dropout.defined() ? weights * dropout : weights;
    grad_query.push_back(at::matmul(grad_scores, key).flatten(1, 2));
    grad_key.add_(
        at::matmul(grad_scores.transpose(-2, -1), rows_of_block.query(rows))
            .sum(2));
    grad_value.add_(at::matmul(kept.transpose(-2, -1), grad).sum(2));
  }
  return {at::cat(grad_query, 2), grad_key, grad_value};
}

}  // namespace

at::ScalarType accumulation_dtype(at::ScalarType dtype) {
  return dtype == at::kDouble ? at::kDouble : at::kFloat;
}

BlockOutput attend(const AttentionBlock& block) {
  return has_fused_kernel(block) ? attend_fused(block) : attend_in_rows(block);
}

BlockGradients attend_backward(
    const AttentionBlock& block,
    const at::Tensor& grad_output,
    const BlockOutput& whole) {
  return has_fused_kernel(block)
      ? attend_backward_fused(block, grad_output, whole)
      : attend_backward_in_rows(block, grad_output, whole);
}

void merge_into(const BlockOutput& whole, const BlockOutput& block) {
  const at::Tensor sum = at::logaddexp(whole.logsumexp, block.logsumexp);
  // If nothing was attended to, both weights are exp(-inf).
  const at::Tensor finite = sum.masked_fill(sum == -kInfinity, 0);
  whole.output.mul_((whole.logsumexp - finite).exp_().unsqueeze(-1))
      .addcmul_(
          block.output.to(whole.output.scalar_type()),
          (block.logsumexp - finite).exp_().unsqueeze(-1));
  whole.logsumexp.copy_(sum);
}

}  // namespace accelerate::detail
