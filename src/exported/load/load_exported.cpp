#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <accelerate/error.h>
#include <accelerate/exported_model.h>

#include "base/text/text.h"
#include "exported/graph/compiler.h"
#include "exported/graph/dtypes.h"
#include "exported/load/loaded_program.h"
#include "exported/load/module_tree.h"
#include "exported/load/weights.h"
#include "format/exported/describe.h"
#include "format/exported/exported_archive.h"
#include "gate/factory_scope.h"
#include "modules/name_pattern.h"

namespace accelerate {

using namespace detail;

namespace {

using InputKind = ExportedInput::Kind;

// Loads one program of an archive.
class Loader {
 public:
  Loader(const std::filesystem::path& path, const ExportedOptions& options)
      : path_(path.string()),
        archive_(path),
        program_(archive_.program(options.model)),
        evaluation_(archive_.evaluation()),
        facts_(archive_.facts()),
        table_(archive_.weights(options.model)) {
    const ExportedTensors constants = archive_.constants(options.model);
    require_values(table_, /*may_have_none=*/true);
    require_values(constants, /*may_have_none=*/false);
    TensorLoader loader(archive_, path);
    weights_ = loader.load(table_, options.weights);
    constants_ = loader.load(constants, true);
  }

  ExportedModel load() {
    auto program = std::make_unique<LoadedProgram>();
    LoadedProgram& loaded = *program;
    const auto classes = class_names();
    const auto root = classes.find("");
    ExportedModel model(std::make_shared<ExportedModelImpl>(
        root == classes.end() ? "Module" : root->second, std::move(program)));
    ExportedTree tree(*model, classes);
    if (facts_) {
      for (const auto& [name, type] : facts_->modules) {
        if (!name.empty()) tree.add(name);
      }
      set_modes(tree);
    }
    register_tensors(tree);
    move_to_scope(*model);
    compile(tree, loaded);
    auto names = std::make_shared<std::vector<std::string>>();
    for (const ExportedOutput& output : program_.outputs) {
      if (output.buffer.empty()) names->push_back(output.name);
    }
    loaded.output_names = std::move(names);
    loaded.is_described = facts_.has_value();
    if (facts_) {
      loaded.autocast = scalar_type(facts_->autocast);
      loaded.tp_plan = plan_of(*model);
    }
    try {
      loaded.exported_on = c10::Device(program_.device).type();
    } catch (const c10::Error&) {
      throw CheckpointError(format(
          "[exported] {} cannot be read: its device must be known, but is '{}'",
          path_,
          printable(program_.device)));
    }
    return model;
  }

 private:
  [[nodiscard]] std::map<std::string, std::string> class_names() const {
    std::map<std::string, std::string> classes = program_.classes;
    if (facts_) {
      for (const auto& [name, type] : facts_->modules) classes[name] = type;
    }
    return classes;
  }

  // Either all tensors of an archive have values or, if it holds only a graph,
  // none has.
  void require_values(const ExportedTensors& tensors, bool may_have_none)
      const {
    const std::string* without = nullptr;
    bool has_values = !may_have_none;
    for (const auto& [name, tensor] : tensors) {
      if (tensor.bytes) {
        has_values = true;
      } else if (without == nullptr) {
        without = &name;
      }
    }
    if (without == nullptr || !has_values) return;
    throw CheckpointError(format(
        "[exported] {} cannot be read: it lacks the values of '{}'",
        path_,
        printable(*without)));
  }

  // Puts modules into eval() that were in it in Python. eval() acts on children
  // as well, which follow in Python's order.
  void set_modes(const ExportedTree& tree) const {
    const std::set<std::string> evaluated(
        facts_->evaluated.begin(), facts_->evaluated.end());
    if (evaluated.empty()) return;
    for (const auto& [name, type] : facts_->modules) {
      if (const auto module = tree.find(name))
        module->train(!evaluated.contains(name));
    }
  }

  // The tensors of the state dict, in the order of the graph's inputs, which is
  // Python's; then those that no operator reads.
  void register_tensors(ExportedTree& tree) {
    std::set<const void*> registered;
    std::set<std::string> hidden;
    for (const ExportedInput& input : program_.inputs) {
      const auto found = weights_.find(input.name);
      if (input.kind == InputKind::hidden_buffer ||
          input.kind == InputKind::constant) {
        hidden.insert(input.name);
      } else if (found != weights_.end()) {
        add(tree, input.name, found->second, input.kind, registered);
      }
    }
    for (const auto& [name, tensor] : weights_) {
      if (hidden.contains(name)) continue;
      const bool is_parameter = table_.at(name).is_parameter;
      add(tree,
          name,
          tensor,
          is_parameter ? InputKind::parameter : InputKind::buffer,
          registered);
    }
  }

  // Hugging Face's plan for modules that have parameters: a tied layer has not.
  [[nodiscard]] std::vector<std::pair<std::string, std::string>> plan_of(
      const torch::nn::Module& model) const {
    auto plan = facts_->tp_plan;
    const auto modules =
        model.named_modules(std::string(), /*include_self=*/false);
    std::erase_if(plan, [&](const auto& entry) {
      return std::ranges::none_of(modules, [&](const auto& module) {
        return matches_name(entry.first, module.key()) &&
            !module.value()->parameters(/*recurse=*/true).empty();
      });
    });
    return plan;
  }

  // Follows init_empty_weights() and other scopes, which act on factory
  // functions, not on tensors of files: a probe shows what they would do.
  static void move_to_scope(const torch::nn::Module& module) {
    if (FactoryScope::innermost() == nullptr) return;
    torch::nn::Module probe;
    const at::Tensor parameter =
        probe.register_parameter("parameter", at::empty({0}));
    // A parameter has moved by the time the next tensor is made.
    const at::Tensor buffer = at::empty({0});
    for (const at::Tensor& own : module.parameters())
      move_in_place(own, parameter.device());
    for (const at::Tensor& own : module.buffers())
      move_in_place(own, buffer.device());
  }

  // A tied tensor is registered under its first name, as named_parameters() in
  // Python lists it: otherwise an optimizer would step it twice.
  static void add(
      ExportedTree& tree,
      const std::string& name,
      const at::Tensor& tensor,
      InputKind kind,
      std::set<const void*>& registered) {
    if (!registered.insert(tensor.unsafeGetTensorImpl()).second) return;
    if (kind == InputKind::parameter) {
      tree.add_parameter(name, tensor);
    } else if (kind == InputKind::buffer) {
      tree.add_buffer(name, tensor);
    }
  }

  void compile(const ExportedTree& tree, LoadedProgram& loaded) {
    Compiler compiler([&](const std::string& name) { return tree.find(name); });
    Code training = compiler.compile(program_);
    std::optional<Code> evaluation;
    if (evaluation_) evaluation = compiler.compile(*evaluation_);
    if (!compiler.unsupported().empty()) {
      throw ConfigError(format(
          "[exported] {} cannot be run. It has\n  {}",
          path_,
          join(compiler.unsupported(), "\n  ")));
    }
    LoadedTensors tensors = weights_;
    tensors.insert(constants_.begin(), constants_.end());
    loaded.training = BoundGraph(program_, std::move(training), tensors);
    if (!evaluation) return;
    loaded.evaluation.emplace(*evaluation_, std::move(*evaluation), tensors);
    if (loaded.evaluation->input_names() != loaded.training.input_names()) {
      throw CheckpointError(format(
          "[exported] {} cannot be read: its graph for eval() must have the "
          "inputs of the training graph ({}), but has {}",
          path_,
          printable(join(loaded.training.input_names(), ", ")),
          printable(join(loaded.evaluation->input_names(), ", "))));
    }
  }

  std::string path_;
  ExportedArchive archive_;
  ExportedProgram program_;
  std::optional<ExportedProgram> evaluation_;
  std::optional<ExportedFacts> facts_;
  ExportedTensors table_;
  LoadedTensors weights_;
  LoadedTensors constants_;
};

}  // namespace

ExportedModel load_exported(
    const std::filesystem::path& path,
    const ExportedOptions& options) {
  try {
    return Loader(path, options).load();
  } catch (const c10::Error& error) {
    // LibTorch rejects two tensors of one name, for example.
    throw CheckpointError(format(
        "[exported] {} cannot be read: {}",
        path.string(),
        error.what_without_backtrace()));
  }
}

ExportedDescription inspect_exported(
    const std::filesystem::path& path,
    const ExportedOptions& options) {
  const ExportedArchive archive(path);
  ExportedDescription description = describe_exported(archive, options.model);
  Compiler compiler([](const std::string&) { return nullptr; });
  compiler.compile(archive.program(options.model));
  if (const auto evaluation = archive.evaluation()) {
    compiler.compile(*evaluation);
  }
  description.unsupported = compiler.unsupported();
  return description;
}

}  // namespace accelerate
