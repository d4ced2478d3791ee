#pragma once

#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "checkpoint/components/component.h"
#include "checkpoint/components/models.h"
#include "checkpoint/components/parameter_names.h"
#include "params/optimizer_state.h"

namespace accelerate::detail {

/// What OptimizerComponent loads.
enum class OptimizerParts {
  all,
  /// Master weights alone; otherwise optimizers keep their current state.
  master_weights
};

/// The states of all optimizers: a tree in the common state, and tensors in
/// their own sections. Comes after the schedulers, which change learning rates.
class OptimizerComponent final : public CheckpointComponent {
 public:
  /// `mesh` and `device` serve tensors that are not sharded.
  OptimizerComponent(
      std::vector<torch::optim::Optimizer*> optimizers,
      ParameterNames names,
      WriterRule writes,
      Mesh mesh,
      at::Device device,
      OptimizerParts loads = OptimizerParts::all);

  [[nodiscard]] std::string_view key() const override { return "optimizers"; }
  void collect(CheckpointContents& contents) const override;
  [[nodiscard]] std::vector<std::string> check(
      const CheckpointSource& source,
      const MatchRules& rules) override;
  void load(const CheckpointSource& source, const MatchRules& rules) override;

 private:
  using MasterList = std::vector<std::pair<std::string, at::Tensor>>;

  /// A saved state and its optimizer.
  struct OptimizerToLoad {
    std::string section;
    torch::optim::Optimizer* optimizer = nullptr;
    NameOfParameter name_of;
    OptimizerState state;
    MasterList masters;
  };

  /// Returns the optimizer's tree; its tensors go to a section of `contents`.
  [[nodiscard]] StateDict collect_one(
      const torch::optim::Optimizer& optimizer,
      std::string section,
      CheckpointContents& contents) const;
  void load_one(
      OptimizerToLoad& to_load,
      const CheckpointSource& source,
      const MatchRules& rules) const;
  void load_masters(
      std::size_t index,
      const CheckpointSource& source,
      const MatchRules& rules) const;
  /// Copies the model's weights to master weights that were not saved.
  void fill_masters(
      const torch::optim::Optimizer& optimizer,
      const MasterList& masters,
      const StoredTensors& saved) const;
  /// The master weights whose parameters are not skipped.
  [[nodiscard]] MasterList masters_to_load(
      const torch::optim::Optimizer& optimizer,
      const MatchRules& rules) const;

  std::vector<torch::optim::Optimizer*> optimizers_;
  ParameterNames names_;
  WriterRule writes_;
  Mesh mesh_;
  at::Device device_;
  OptimizerParts loads_;
  std::vector<OptimizerToLoad> to_load_;
};

}  // namespace accelerate::detail
