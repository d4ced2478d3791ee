#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "checkpoint/components/models.h"
#include "params/optimizer_state.h"

namespace accelerate::detail {

/// A layout, its mesh, and the device on which optimizers step.
struct MeshLayout {
  Layout layout;
  const Mesh* mesh = nullptr;
  at::Device device = at::kCPU;
  MakeTensor make_state = nullptr;  ///< see Parameter
};

/// Names parameters in optimizers' states: the first model's own names,
/// "model_1/weight" for other models, and "group_0/1" for a tensor that belongs
/// to no model.
class ParameterNames {
 public:
  explicit ParameterNames(std::vector<PlacedModel> models);

  /// The names of the tensors that `optimizer` steps on.
  [[nodiscard]] NameOfParameter of(
      const torch::optim::Optimizer& optimizer) const;

  /// True for a parameter that only other stages of a pipeline have.
  [[nodiscard]] bool is_elsewhere(const std::string& name) const;
  /// True for a parameter that an earlier stage also has and saves.
  [[nodiscard]] bool is_saved_there(const std::string& name) const;

  /// The layouts of parameters that are sharded over ranks, by name.
  [[nodiscard]] std::map<std::string, MeshLayout> sharded_layouts() const;

  /// The master weights of `optimizer`, in another precision than the model's,
  /// by name in the optimizer's state.
  [[nodiscard]] std::vector<std::pair<std::string, at::Tensor>> masters_of(
      const torch::optim::Optimizer& optimizer) const;

  /// The model's tensor for the parameter that an optimizer steps on as
  /// `local`; null if `local` is itself the model's tensor.
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
