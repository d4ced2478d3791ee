#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <accelerate/exported_model.h>

#include "exported/load/loaded_program.h"
#include "exported/stages/graph_part.h"
#include "exported/stages/module_names.h"

namespace accelerate::detail {

/// A part of an exported program, with its share of the model.
struct ProgramStage {
  /// The module at whose first operator it begins; for the first stage, the
  /// first module that is called.
  std::string name;
  /// The modules that it calls, or whose tensors it reads, and those that
  /// nothing uses.
  std::vector<std::pair<std::string, std::shared_ptr<torch::nn::Module>>>
      modules;
  /// Parameters of modules that stages share: of the root, say.
  std::vector<std::pair<std::string, at::Tensor>> parameters;
  /// Buffers of such modules. One that several stages read never changes.
  std::vector<std::pair<std::string, at::Tensor>> buffers;
  /// A module whose mode stands for the root's.
  std::shared_ptr<torch::nn::Module> mode;
  LoadedProgram program;
};

/// Divides exported programs into stages at the first operators of modules.
class ProgramStages {
 public:
  /// Borrows `model`.
  explicit ProgramStages(const ExportedModelImpl& model);

  /// The first modules of all stages but the first, if a stage begins wherever
  /// that is useful: at each block of a transformer, say.
  [[nodiscard]] std::vector<std::string> points() const;
  /// The stages that begin at these modules, and the one before them. Throws
  /// ConfigError if no stage can begin at one of them, or if they are not in
  /// the order in which they are called.
  [[nodiscard]] std::vector<ProgramStage> divide(
      const std::vector<std::string>& points) const;

 private:
  /// A graph, and where it calls modules.
  struct Graph {
    Graph(
        const BoundGraph& graph,
        const ModuleNames& names,
        const std::vector<std::string>& first_names);

    const BoundGraph& bound;
    DividedGraph divided;
    /// The first operator of each module.
    std::map<std::string, std::size_t> first_calls;
    /// For each module, a block (control flow, autocast) that contains
    /// operators of it.
    std::map<std::string, const Instruction*> blocks;
    /// The first operator of the module that comes first.
    std::size_t first = 0;
  };
  class Division;

  [[nodiscard]] std::string complaint(
      const std::string& point,
      const std::string& previous) const;
  [[nodiscard]] static std::string complaint_of(
      const Graph& graph,
      const std::string& point,
      const std::string& previous);

  const ExportedModelImpl& model_;
  ModuleNames names_;
  /// The graph for training, and the one for eval() if there is one.
  std::vector<Graph> graphs_;
};

}  // namespace accelerate::detail
