#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "checkpoint/components/models.h"
#include "params/optimizer_state.h"

namespace accelerate::detail {

/// A layout, the mesh it refers to, and the device that optimizers step on.
struct MeshLayout {
  Layout layout;
  const Mesh* mesh = nullptr;
  at::Device device = at::kCPU;
};

/// The names by which optimizers' states know parameters of some models: those
/// of the first model as it calls them, of others as "model_1/weight", and
/// "group_0/1" for a tensor of none of them.
class ParameterNames {
 public:
  explicit ParameterNames(std::vector<PlacedModel> models);

  /// For the tensors that `optimizer` steps on.
  [[nodiscard]] NameOfParameter of(
      const torch::optim::Optimizer& optimizer) const;

  /// The parameters that are split over ranks, by name.
  [[nodiscard]] std::map<std::string, MeshLayout> split_layouts() const;

  /// The tensors that `optimizer` steps on in another precision than the model
  /// has, by their name in the optimizer's state.
  [[nodiscard]] std::vector<std::pair<std::string, at::Tensor>> masters_of(
      const torch::optim::Optimizer& optimizer) const;

  /// The model's tensor of a parameter that an optimizer steps on as `local`;
  /// null where that is the model's tensor itself.
  [[nodiscard]] const at::Tensor* tensor_of(const at::Tensor& local) const;

 private:
  struct Row {
    std::size_t model = 0;
    const Parameter* parameter = nullptr;
  };
  [[nodiscard]] Row find(const at::Tensor& stepped_on) const;

  std::vector<PlacedModel> models_;
};

}  // namespace accelerate::detail
