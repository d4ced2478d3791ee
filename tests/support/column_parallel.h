#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "parallel/plan/plan.h"
#include "parallel/shard/prepare/initial_values.h"

namespace accelerate::testing {

/// A linear layer whose weight may be sharded along dimension 1 over the ranks
/// of a group: each rank computes with its columns, and the results are summed.
/// A test-only stand-in for tensor parallelism.
class ColumnLinearImpl : public torch::nn::Module {
 public:
  ColumnLinearImpl(std::int64_t in, std::int64_t out) {
    weight = register_parameter("weight", torch::randn({out, in}) * 0.3);
    bias = register_parameter("bias", torch::randn({out}) * 0.3);
  }

  torch::Tensor forward(const torch::Tensor& x) {
    if (group.size() == 1)
      return torch::nn::functional::linear(x, weight, bias);
    torch::Tensor own = x.view_as(x);
    // Every rank has the full input, but computes a gradient from its columns
    // only.
    if (own.requires_grad()) {
      own.register_hook([ranks = group](const torch::Tensor& gradient) {
        return sum(gradient, ranks);
      });
    }
    own = own.narrow(-1, first_column, num_columns);
    return Sum::apply(torch::matmul(own, weight.t()), group) + bias;
  }

  torch::Tensor weight, bias;
  Group group;
  std::int64_t first_column = 0;
  std::int64_t num_columns = 0;

 private:
  static torch::Tensor sum(const torch::Tensor& tensor, const Group& group) {
    torch::Tensor all = tensor.detach().clone();
    group.all_reduce(all);
    return all;
  }

  // Every rank has a partial sum of the output, and the output's full gradient.
  struct Sum : torch::autograd::Function<Sum> {
    static torch::Tensor forward(
        torch::autograd::AutogradContext*,
        const torch::Tensor& x,
        const Group& group) {
      return sum(x, group);
    }
    static torch::autograd::variable_list backward(
        torch::autograd::AutogradContext*,
        torch::autograd::variable_list gradients) {
      return {gradients[0], {}};
    }
  };
};
TORCH_MODULE(ColumnLinear);

/// Shards dimension 1 of the weights of all ColumnLinear modules over the
/// tensor axis, unevenly if the columns do not divide evenly, and leaves other
/// parameters to later strategies.
class ColumnParallel final : public detail::Strategy {
 public:
  explicit ColumnParallel(const Mesh& mesh, std::string prefix = {})
      : mesh_(mesh), prefix_(std::move(prefix)) {}

  // Accepts empty parameters for a `shard` strategy that follows.
  [[nodiscard]] detail::StrategyTraits traits() const override {
    return {.takes_empty = mesh_.degree(Axis::shard) > 1};
  }

  void prepare(torch::nn::Module& module, detail::ParameterTable& table)
      override {
    const torch::NoGradGuard no_grad;
    table = detail::ParameterTable(module, prefix_);
    const detail::InitialValues values(mesh_, table);
    values.broadcast(table);
    const Group model_group = detail::replica_group(detail::Layout(), mesh_);
    for (const torch::Tensor& buffer : module.buffers())
      model_group.broadcast(buffer, 0);
    for (const auto& child : module.modules()) {
      auto* const layer = child->as<ColumnLinearImpl>();
      if (layer == nullptr) continue;
      for (detail::Parameter& row : table.rows()) {
        if (row.tensor.is_same(layer->weight)) split(*layer, row, values);
      }
    }
  }

 private:
  void split(
      ColumnLinearImpl& layer,
      detail::Parameter& row,
      const detail::InitialValues& values) const {
    const auto degree = static_cast<std::int64_t>(mesh_.degree(Axis::tensor));
    std::vector<std::int64_t> begins;
    for (std::int64_t i = 0; i <= degree; ++i)
      begins.push_back(row.tensor.size(1) * i / degree);
    const auto place = static_cast<std::size_t>(mesh_.coordinate(Axis::tensor));
    layer.group = mesh_.group(Axis::tensor);
    layer.first_column = begins[place];
    layer.num_columns = begins[place + 1] - begins[place];
    const torch::Tensor columns =
        values.own_box(row, Axis::tensor, 1, begins).clone();
    // In place, so that the module's and the optimizer's handles stay valid.
    row.tensor.unsafeGetTensorImpl()->shallow_copy_from(
        columns.contiguous().getIntrusivePtr());
    row.layout.split(Axis::tensor, 1, layer.first_column, layer.num_columns);
  }

  Mesh mesh_;
  std::string prefix_;
};

/// The techniques to pass to make_session().
inline std::vector<detail::AddedTechnique> column_parallel(
    const std::string& prefix = {}) {
  return {{"columns", Axis::tensor, [prefix](const Mesh& mesh) {
             return std::make_unique<ColumnParallel>(mesh, prefix);
           }}};
}

}  // namespace accelerate::testing
