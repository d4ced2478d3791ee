#include "checkpoint/components/parameter_names.h"

#include <memory>
#include <unordered_map>

#include <torch/optim/optimizer.h>

#include "base/text/text.h"

namespace accelerate::detail {

namespace {

std::string qualified(std::size_t model, const std::string& name) {
  return model == 0 ? name : format("model_{}/{}", model, name);
}

}  // namespace

ParameterNames::ParameterNames(std::vector<PlacedModel> models)
    : models_(std::move(models)) {}

ParameterNames::Row ParameterNames::find(const at::Tensor& stepped_on) const {
  for (std::size_t i = 0; i < models_.size(); ++i) {
    const ParameterTable& table = *models_[i].table;
    const Parameter* row = table.find_local(stepped_on);
    if (row == nullptr) row = table.find(stepped_on);
    if (row != nullptr) return {i, row};
  }
  return {};
}

NameOfParameter ParameterNames::of(
    const torch::optim::Optimizer& optimizer) const {
  auto names = std::make_shared<std::unordered_map<const void*, std::string>>();
  const auto& groups = optimizer.param_groups();
  for (std::size_t g = 0; g < groups.size(); ++g) {
    for (std::size_t i = 0; i < groups[g].params().size(); ++i) {
      const at::Tensor& parameter = groups[g].params()[i];
      const Row row = find(parameter);
      names->emplace(
          parameter.unsafeGetTensorImpl(),
          row.parameter != nullptr ? qualified(row.model, row.parameter->name)
                                   : format("group_{}/{}", g, i));
    }
  }
  return [names](const at::Tensor& parameter) {
    return names->at(parameter.unsafeGetTensorImpl());
  };
}

bool ParameterNames::is_elsewhere(const std::string& name) const {
  for (std::size_t i = 0; i < models_.size(); ++i) {
    if (models_[i].others == nullptr) continue;
    for (const std::string& other : models_[i].others->names)
      if (qualified(i, other) == name) return true;
  }
  return false;
}

bool ParameterNames::is_saved_there(const std::string& name) const {
  for (std::size_t i = 0; i < models_.size(); ++i) {
    if (models_[i].others == nullptr) continue;
    for (const std::string& other : models_[i].others->saved_there)
      if (qualified(i, other) == name) return true;
  }
  return false;
}

std::map<std::string, MeshLayout> ParameterNames::sharded_layouts() const {
  std::map<std::string, MeshLayout> layouts;
  for (std::size_t i = 0; i < models_.size(); ++i) {
    for (const Parameter& row : models_[i].table->rows()) {
      if (row.layout.is_unsharded()) continue;
      layouts.emplace(
          qualified(i, row.name),
          MeshLayout{
              row.layout, models_[i].mesh, row.local.device(), row.make_state});
    }
  }
  return layouts;
}

std::vector<std::pair<std::string, at::Tensor>> ParameterNames::masters_of(
    const torch::optim::Optimizer& optimizer) const {
  std::vector<std::pair<std::string, at::Tensor>> masters;
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      const auto [model, row] = find(parameter);
      if (row != nullptr && row->layout.is_unsharded() &&
          !row->local.is_same(row->tensor)) {
        masters.emplace_back(
            format("{}/master", qualified(model, row->name)), row->local);
      }
    }
  }
  return masters;
}

const at::Tensor* ParameterNames::tensor_of(const at::Tensor& local) const {
  for (const PlacedModel& model : models_) {
    const Parameter* row = model.table->find_local(local);
    if (row != nullptr) return &row->tensor;
  }
  return nullptr;
}

}  // namespace accelerate::detail
