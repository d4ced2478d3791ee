#pragma once

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <torch/nn/module.h>

#include "exported/graph/instruction.h"
#include "format/exported/exported_program.h"

namespace accelerate::detail {

/// Translates graphs into instructions.
class Compiler {
 public:
  /// The module with a dotted name; null for the root and unknown names.
  using ModuleOf =
      std::function<std::shared_ptr<torch::nn::Module>(const std::string&)>;
  explicit Compiler(ModuleOf module_of) : module_of_(std::move(module_of)) {}

  Code compile(const ExportedProgram& program);
  /// What could not be translated, in order, each once: "operator
  /// torchvision.nms.default, which is not in this program: ...".
  [[nodiscard]] const std::vector<std::string>& unsupported() const {
    return unsupported_;
  }

 private:
  class Graph;
  void complain(const std::string& what);

  ModuleOf module_of_;
  std::vector<std::string> unsupported_;
  std::set<std::string> complained_;
};

/// Marks the last use of each slot, whose value then moves, and leaves out
/// results that nothing reads.
void mark_last_uses(Code& code);

/// Whether the node is left out when a graph runs: it asserts the dtypes and
/// devices of the export, which autocast and Module::to() change.
bool is_left_out(const ExportedNode& node);

}  // namespace accelerate::detail
