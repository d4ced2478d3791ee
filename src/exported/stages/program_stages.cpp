#include "exported/stages/program_stages.h"

#include <algorithm>
#include <functional>
#include <set>
#include <unordered_map>

#include <accelerate/error.h>

#include "base/text/text.h"

namespace accelerate::detail {

namespace {

// Calls `visit(module, instruction)` for the instructions of a graph that are
// in a module, also those in blocks. `instruction` is the block then.
template <class Visit>
void visit_modules(const Code& code, Visit&& visit) {
  const std::function<void(const Code&, const Instruction&)> visit_block =
      [&](const Code& block, const Instruction& outer) {
        for (const Instruction& inner : block.instructions) {
          if (inner.module) visit(*inner.module, outer);
          for (const Code& branch : inner.branches) visit_block(branch, outer);
        }
      };
  for (const Instruction& instruction : code.instructions) {
    if (instruction.module) visit(*instruction.module, instruction);
    for (const Code& branch : instruction.branches)
      visit_block(branch, instruction);
  }
}

template <class Value>
void add_with_owners(
    std::map<std::string, Value>& values,
    std::string name,
    const Value& value) {
  for (; !name.empty(); name = owner_in(name)) values.emplace(name, value);
}

}  // namespace

ProgramStages::Graph::Graph(
    const BoundGraph& graph,
    const ModuleNames& names,
    const std::vector<std::string>& first_names)
    : bound(graph), divided(graph) {
  const auto& instructions = graph.code().instructions;
  for (std::size_t i = 0; i < instructions.size(); ++i) {
    const std::string name = names.name_of(instructions[i].module.get());
    add_with_owners(first_calls, name, i);
  }
  visit_modules(
      graph.code(),
      [&](const torch::nn::Module& module, const Instruction& block) {
        if (!block.branches.empty())
          add_with_owners(blocks, names.name_of(&module), &block);
      });
  first = instructions.size();
  for (const std::string& name : first_names) {
    const auto found = first_calls.find(name);
    if (found != first_calls.end()) first = std::min(first, found->second);
  }
}

ProgramStages::ProgramStages(const ExportedModelImpl& model)
    : model_(model), names_(model) {
  const auto blocks = blocks_of(model);
  graphs_.emplace_back(model.program_->training, names_, blocks);
  if (model.program_->evaluation)
    graphs_.emplace_back(*model.program_->evaluation, names_, blocks);
}

// Why no stage can begin at a module in one graph; completes "must".
std::string ProgramStages::complaint_of(
    const Graph& graph,
    const std::string& point,
    const std::string& previous) {
  const auto found = graph.first_calls.find(point);
  if (found == graph.first_calls.end()) {
    const auto block = graph.blocks.find(point);
    const std::string only = block == graph.blocks.end()
        ? "none"
        : "one only in " + block->second->place;
    return "have an operator outside of control flow and autocast blocks, but "
           "has " +
        only;
  }
  const std::size_t begin = found->second;
  if (begin <= graph.first) {
    return "not be the first module that is called, with which the first stage "
           "begins, but is";
  }
  const auto before = graph.first_calls.find(previous);
  if (before != graph.first_calls.end() && begin <= before->second) {
    return format(
        "be called after '{}', but {}",
        printable(previous),
        begin == before->second ? "begins with the same operator"
                                : "is called before it");
  }
  if (const Instruction* obstacle = graph.divided.values().obstacle(begin)) {
    return format(
        "not come between a tensor and its change in "
        "place, but comes before {}",
        obstacle->place);
  }
  return {};
}

std::string ProgramStages::complaint(
    const std::string& point,
    const std::string& previous) const {
  if (!names_.contains(point)) {
    return format(
        "be a module of the program, such as {}",
        printable(join(points(), ", ")));
  }
  for (const Graph& graph : graphs_) {
    std::string text = complaint_of(graph, point, previous);
    if (text.empty()) continue;
    return &graph == &graphs_.front() ? text : text + " in eval()";
  }
  return {};
}

std::vector<std::string> ProgramStages::points() const {
  const auto& first_calls = graphs_.front().first_calls;
  std::vector<std::pair<std::size_t, std::string>> blocks;
  for (const std::string& name : blocks_of(model_)) {
    const auto found = first_calls.find(name);
    const bool has_weights = !names_.at(name)->parameters().empty();
    if (has_weights && found != first_calls.end())
      blocks.emplace_back(found->second, name);
  }
  std::ranges::sort(blocks);
  std::vector<std::string> points;
  for (const auto& [begin, name] : blocks) {
    if (complaint(name, points.empty() ? std::string() : points.back()).empty())
      points.push_back(name);
  }
  return points;
}

/// The state of a division in progress.
class ProgramStages::Division {
 public:
  Division(const ProgramStages& stages, const std::vector<std::string>& points)
      : model_(stages.model_), names_(stages.names_) {
    for (const std::string& point : points) names_.divide_above(point);
    for (const auto& item : model_.named_parameters())
      add_tensor(item.key(), item.value());
    for (const auto& item : model_.named_buffers()) {
      add_tensor(item.key(), item.value());
      buffers_.insert(item.key());
    }
    for (const Graph& graph : stages.graphs_) {
      for (const at::Tensor& tensor : graph.divided.values().changed()) {
        const auto found = tensor_names_.find(tensor.unsafeGetTensorImpl());
        if (found != tensor_names_.end()) changed_.insert(found->second);
      }
    }
    for (std::size_t i = 0; i <= points.size(); ++i) {
      ProgramStage stage;
      if (i > 0) stage.name = points[i - 1];
      stage.program.output_names = model_.program_->output_names;
      stage.program.exported_on = model_.program_->exported_on;
      for (const Graph& graph : stages.graphs_) {
        const std::size_t size = graph.bound.code().instructions.size();
        const std::size_t begin =
            i == 0 ? 0 : graph.first_calls.at(points[i - 1]);
        const std::size_t end =
            i == points.size() ? size : graph.first_calls.at(points[i]);
        BoundGraph part = graph.divided.part(begin, end);
        add_uses(part, uses_.emplace_back());
        if (&graph == &stages.graphs_.front()) {
          stage.program.training = std::move(part);
        } else {
          stage.program.evaluation = std::move(part);
        }
      }
      merge_uses(i);
      stages_.push_back(std::move(stage));
    }
  }

  std::vector<ProgramStage> finish() {
    divide_around_shared_tensors();
    require_constant_shared_buffers();
    for (std::size_t i = 0; i < stages_.size(); ++i) fill(stages_[i], uses_[i]);
    add_unused();
    for (ProgramStage& stage : stages_) set_modes(stage);
    return std::move(stages_);
  }

 private:
  /// Names of modules that a stage calls, in order, and of tensors that it
  /// reads.
  struct Uses {
    std::vector<std::string> modules;
    std::vector<std::string> tensors;
  };

  void add_tensor(const std::string& name, const at::Tensor& tensor) {
    tensor_names_.emplace(tensor.unsafeGetTensorImpl(), name);
    tensors_.emplace(name, tensor);
  }

  void add_uses(const BoundGraph& part, Uses& uses) const {
    visit_modules(
        part.code(), [&](const torch::nn::Module& module, const Instruction&) {
          const std::string name = names_.name_of(&module);
          if (!name.empty()) uses.modules.push_back(name);
        });
    const auto add = [&](const at::Tensor& tensor) {
      const auto found = tensor_names_.find(tensor.unsafeGetTensorImpl());
      if (found != tensor_names_.end()) uses.tensors.push_back(found->second);
    };
    for (const BoundInput& input : part.inputs()) add(input.tensor);
    for (const at::Tensor& target : part.targets()) add(target);
  }

  // A stage has both graphs.
  void merge_uses(std::size_t stage) {
    while (uses_.size() > stage + 1) {
      const Uses last = std::move(uses_.back());
      uses_.pop_back();
      Uses& all = uses_.back();
      all.modules.insert(
          all.modules.end(), last.modules.begin(), last.modules.end());
      all.tensors.insert(
          all.tensors.end(), last.tensors.begin(), last.tensors.end());
    }
  }

  [[nodiscard]] bool calls(const Uses& uses, const std::string& unit) const {
    return std::ranges::any_of(uses.modules, [&](const std::string& name) {
      return names_.unit_of(name) == unit;
    });
  }

  // A stage that only reads a tensor of another stage's module (a tied
  // embedding) gets the module that owns it, not those that contain that
  // module.
  void divide_around_shared_tensors() {
    for (bool has_changed = true; has_changed;) {
      has_changed = false;
      for (const Uses& uses : uses_) {
        for (const std::string& tensor : uses.tensors) {
          const std::string unit = names_.unit_of(tensor);
          if (unit.empty() || unit == owner_in(tensor) || calls(uses, unit))
            continue;
          names_.divide_above(owner_in(tensor));
          has_changed = true;
        }
      }
    }
  }

  // Within one graph, no stage begins between uses of a buffer that changes;
  // the graph of eval() may read elsewhere what that of train() changes.
  void require_constant_shared_buffers() const {
    std::map<std::string, std::size_t> stages;
    for (std::size_t i = 0; i < uses_.size(); ++i) {
      for (const std::string& tensor : uses_[i].tensors) {
        const auto [place, is_new] = stages.emplace(tensor, i);
        if (place->second == i || !changed_.contains(tensor)) continue;
        throw ConfigError(format(
            "[exported] a buffer that stages share must never change, but '{}' "
            "does, and stages {} and {} use it; let one stage have all modules "
            "that use it",
            printable(tensor),
            place->second,
            i));
      }
    }
  }

  void fill(ProgramStage& stage, const Uses& uses) {
    std::vector<std::string> units;
    for (const auto& name : uses.modules) units.push_back(names_.unit_of(name));
    for (const auto& name : uses.tensors) {
      const std::string unit = names_.unit_of(name);
      units.push_back(unit);
      if (unit.empty()) add_tensor(stage, name);
    }
    for (const std::string& unit : units) add_unit(stage, unit);
    if (stage.name.empty())
      stage.name = stage.modules.empty() ? "inputs" : stage.modules[0].first;
  }

  void add_unit(ProgramStage& stage, const std::string& unit) {
    const bool is_known = std::ranges::any_of(
        stage.modules,
        [&](const auto& module) { return module.first == unit; });
    if (unit.empty() || is_known) return;
    stage.modules.emplace_back(unit, names_.at(unit));
    first_stages_.emplace(
        unit, static_cast<std::size_t>(&stage - stages_.data()));
  }

  // Adds a tensor of a divided module.
  void add_tensor(ProgramStage& stage, const std::string& name) {
    auto& own = buffers_.contains(name) ? stage.buffers : stage.parameters;
    const bool is_known = std::ranges::any_of(
        own, [&](const auto& item) { return item.first == name; });
    if (!is_known) own.emplace_back(name, tensors_.at(name));
    used_tensors_.insert(name);
  }

  // Tensors that no operator uses stay beside their neighbours, so that saved
  // weights are complete.
  void add_unused() {
    std::size_t stage = 0;
    for (const std::string& unit : names_.units()) {
      const auto found = first_stages_.find(unit);
      const torch::nn::Module& module = *names_.at(unit);
      if (found != first_stages_.end()) {
        stage = found->second;
      } else if (!module.parameters().empty() || !module.buffers().empty()) {
        add_unit(stages_[stage], unit);
      }
    }
    for (const auto& [name, tensor] : tensors_) {
      const bool is_direct = names_.unit_of(name).empty();
      if (is_direct && !used_tensors_.contains(name))
        add_tensor(stages_.front(), name);
    }
  }

  // Divided modules are on no stage, so their operators follow the mode of one
  // that is.
  void set_modes(ProgramStage& stage) const {
    const bool is_training = model_.is_training();
    for (const auto& [name, module] : stage.modules) {
      if (!stage.mode && module->is_training() == is_training)
        stage.mode = module;
    }
    const auto follows = [&](const torch::nn::Module& module) {
      return names_.is_divided(names_.name_of(&module)) &&
          module.is_training() == is_training;
    };
    stage.program.training.follow_root(follows);
    if (stage.program.evaluation)
      stage.program.evaluation->follow_root(follows);
  }

  const ExportedModelImpl& model_;
  ModuleNames names_;
  std::unordered_map<const void*, std::string> tensor_names_;
  std::map<std::string, at::Tensor> tensors_;
  std::set<std::string> buffers_;
  /// Tensors that a run of one of the graphs changes.
  std::set<std::string> changed_;
  std::vector<ProgramStage> stages_;
  std::vector<Uses> uses_;
  std::map<std::string, std::size_t> first_stages_;
  std::set<std::string> used_tensors_;
};

std::vector<ProgramStage> ProgramStages::divide(
    const std::vector<std::string>& points) const {
  std::string previous;
  for (const std::string& point : points) {
    const std::string wrong = complaint(point, previous);
    if (!wrong.empty()) {
      throw ConfigError(format(
          "[exported] the split point '{}' must {}", printable(point), wrong));
    }
    previous = point;
  }
  return Division(*this, points).finish();
}

}  // namespace accelerate::detail
