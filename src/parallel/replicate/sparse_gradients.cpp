#include "parallel/replicate/sparse_gradients.h"

#include <algorithm>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <torch/nn/modules/embedding.h>

#include "parallel/replicate/average_gradients.h"

namespace accelerate::detail {

namespace {

enum GradientKind : std::int64_t {
  kNoGradient,
  kSparseGradient,
  kDenseGradient
};

GradientKind kind_of_gradient(const at::Tensor& gradient) {
  if (!gradient.defined()) return kNoGradient;
  return gradient.is_sparse() ? kSparseGradient : kDenseGradient;
}

std::int64_t gradient_version(const at::Tensor& gradient) {
  return gradient.defined() && !gradient.is_inference() ? gradient._version()
                                                        : 0;
}

// A sparse gradient without rows.
at::Tensor no_rows(const at::Tensor& parameter) {
  std::vector<std::int64_t> sizes = parameter.sizes().vec();
  sizes[0] = 0;
  return at::sparse_coo_tensor(
             at::zeros(
                 {1, 0},
                 parameter.options().dtype(at::kLong).requires_grad(false)),
             at::zeros(sizes, parameter.options().requires_grad(false)),
             parameter.sizes())
      .coalesce();
}

// Sums in the order of the ranks, so that all get the same bits.
void average_sparse_rows(const Group& group, const at::Tensor& parameter) {
  at::Tensor& gradient = parameter.mutable_grad();
  const at::Tensor own =
      gradient.defined() ? gradient.coalesce() : no_rows(parameter);
  const at::Tensor indices =
      at::cat(group.all_gather_uneven(own.indices().t().contiguous()));
  const at::Tensor values = at::cat(group.all_gather_uneven(own.values()));
  gradient = at::sparse_coo_tensor(
                 indices.t(),
                 values.div(static_cast<double>(group.size())),
                 parameter.sizes())
                 .coalesce();
}

}  // namespace

std::vector<const Parameter*> sparse_rows(
    const torch::nn::Module& module,
    const ParameterTable& table) {
  std::vector<const Parameter*> rows;
  const auto add = [&](const at::Tensor& weight) {
    const Parameter* const row = table.find(weight);
    // Embeddings may share a weight.
    if (row != nullptr && std::ranges::find(rows, row) == rows.end())
      rows.push_back(row);
  };
  for (const auto& each : module.modules()) {
    const auto* const embedding = each->as<torch::nn::EmbeddingImpl>();
    if (embedding != nullptr && embedding->options.sparse())
      add(embedding->weight);
    const auto* const bag = each->as<torch::nn::EmbeddingBagImpl>();
    if (bag != nullptr && bag->options.sparse()) add(bag->weight);
  }
  return rows;
}

void SparseGradients::add(const at::Tensor& parameter) {
  parameters_.push_back(parameter);
  averaged_.emplace_back(at::Tensor());
}

bool SparseGradients::contains(const at::Tensor& parameter) const {
  return std::ranges::any_of(parameters_, [&](const at::Tensor& each) {
    return each.is_same(parameter);
  });
}

void SparseGradients::average(const Group& group) {
  const at::NoGradGuard no_grad;
  // The kinds of all parameters' gradients, then whether each has changed.
  std::vector<std::int64_t> own;
  for (const at::Tensor& parameter : parameters_)
    own.push_back(kind_of_gradient(parameter.grad()));
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    own.push_back(averaged_[i].is(parameters_[i].grad()) ? 0 : 1);
  const at::Tensor all = at::tensor(own, at::kLong);
  group.all_reduce(all, ReduceOp::max);
  const auto* const found = all.const_data_ptr<std::int64_t>();
  std::vector<at::Tensor> dense;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor& parameter = parameters_[i];
    const auto kind = found[i];
    if (found[parameters_.size() + i] == 0) continue;
    if (kind == kSparseGradient) average_sparse_rows(group, parameter);
    if (kind != kDenseGradient) continue;
    if (own[i] == kSparseGradient)
      parameter.mutable_grad() = parameter.grad().to_dense();
    dense.push_back(parameter);
  }
  average_gradients(group, dense);
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    averaged_[i] = Averaged(parameters_[i].grad());
}

SparseGradients::Averaged::Averaged(const at::Tensor& now)
    : gradient(now.getIntrusivePtr()), version(gradient_version(now)) {}

bool SparseGradients::Averaged::is(const at::Tensor& now) const {
  return gradient._unsafe_get_target() == now.unsafeGetTensorImpl() &&
      version == gradient_version(now);
}

}  // namespace accelerate::detail
