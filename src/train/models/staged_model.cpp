#include "train/models/staged_model.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include "train/session/prepared.h"

namespace accelerate::detail {

namespace {

// The table only has rows for parameters.
void add_buffers(const torch::nn::Module& module, ParameterTable& table) {
  for (const auto& item : module.named_buffers()) {
    const at::Tensor& buffer = item.value();
    if (!buffer.defined()) continue;
    const auto& rows = table.rows();
    const bool is_known = std::ranges::any_of(
        rows, [&](const Parameter& row) { return row.tensor.is_same(buffer); });
    if (is_known) continue;
    table.rows().push_back(
        {item.key(), buffer, buffer, Layout::unsharded(buffer.sizes().vec())});
  }
}

// Axes along which ranks may have different shards; the same on all ranks.
std::vector<Axis> dividing_axes(const Mesh& mesh) {
  std::vector<Axis> axes;
  for (const Axis axis :
       {Axis::pipeline, Axis::shard, Axis::expert, Axis::tensor})
    if (mesh.degree(axis) > 1) axes.push_back(axis);
  return axes;
}

// This rank's part of each tensor; undefined for tensors of other stages.
std::vector<at::Tensor> own_tensors(
    const PreparedModel& model,
    const ParameterTable& whole) {
  std::vector<at::Tensor> own;
  const auto buffers = model.module->buffers();
  for (const Parameter& row : whole.rows()) {
    const Parameter* const mine = model.table.find(row.tensor);
    const bool is_buffer = std::ranges::any_of(
        buffers,
        [&](const at::Tensor& buffer) { return buffer.is_same(row.tensor); });
    own.push_back(
        mine != nullptr
            ? (mine->layout.is_unsharded() ? mine->tensor : mine->local)
            : is_buffer ? row.tensor
                        : at::Tensor());
  }
  return own;
}

// The dtypes in which the ranks keep the tensors.
std::vector<at::ScalarType> agreed_dtypes(
    const std::vector<at::Tensor>& own,
    const Mesh& mesh) {
  std::vector<std::int64_t> codes;
  for (const at::Tensor& tensor : own) {
    codes.push_back(
        tensor.defined() ? static_cast<std::int64_t>(tensor.scalar_type()) + 1
                         : 0);
  }
  const at::Tensor all = at::tensor(codes, at::kLong).to(mesh.world().device());
  mesh.group(Axis::pipeline).all_reduce(all, ReduceOp::max);
  const at::Tensor found = all.cpu();
  std::vector<at::ScalarType> dtypes;
  for (std::size_t i = 0; i < codes.size(); ++i) {
    dtypes.push_back(static_cast<at::ScalarType>(
        found.const_data_ptr<std::int64_t>()[i] - 1));
  }
  return dtypes;
}

}  // namespace

std::shared_ptr<const StagedModel> make_staged_model(
    const PipelineStages& stages,
    std::shared_ptr<torch::nn::Module> whole,
    int rank) {
  auto model = std::make_shared<StagedModel>();
  model->others.names = stages.elsewhere;
  for (const TiedParameter& tied : stages.tied) {
    if (tied.tensor.defined() && tied.ranks[0] != rank)
      model->others.saved_there.insert(tied.name);
  }
  model->module = std::move(whole);
  return model;
}

std::unique_ptr<const WholeModel> whole_model(const PreparedModel& model) {
  if (!model.stage) return nullptr;
  const at::NoGradGuard no_grad;
  auto whole = std::make_unique<WholeModel>(WholeModel{
      model.stage->module, ParameterTable(*model.stage->module), &model.mesh});
  add_buffers(*whole->module, whole->table);
  const std::vector<at::Tensor> own = own_tensors(model, whole->table);
  const std::vector<at::ScalarType> dtypes = agreed_dtypes(own, model.mesh);
  const std::vector<Axis> axes = dividing_axes(model.mesh);
  for (std::size_t i = 0; i < own.size(); ++i) {
    Parameter& row = whole->table.rows()[i];
    const Parameter* const mine = model.table.find(row.tensor);
    if (mine != nullptr) row.layout = mine->layout;
    row.local = own[i];
    const auto options =
        at::TensorOptions(dtypes[i]).device(model.placement.device);
    if (row.layout.global_shape.empty()) {
      // A scalar cannot be split: all ranks get it from its first stage.
      const bool is_first = own[i].defined() &&
          !model.stage->others.saved_there.contains(row.name);
      row.local = is_first ? own[i].detach().clone() : at::zeros({}, options);
      model.mesh.group(Axis::pipeline).all_reduce(row.local);
    } else if (!own[i].defined()) {
      row.layout = Layout::unsharded(row.layout.global_shape);
      row.layout.extent[0] = 0;
      row.local = at::empty(row.layout.extent, options);
    }
    row.layout.split_axes = axes;
  }
  return whole;
}

}  // namespace accelerate::detail
