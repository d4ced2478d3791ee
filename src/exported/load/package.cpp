#include <accelerate/package.h>

#include <algorithm>
#include <set>
#include <unordered_map>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_strided.h>
#include <c10/util/Exception.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "exported/graph/dtypes.h"
#include "exported/graph/input_sizes.h"
#include "format/exported/exported_archive.h"

namespace accelerate {

namespace detail {

namespace {

using InputKind = ExportedInput::Kind;
using Loader = torch::inductor::AOTIModelPackageLoader;
using Constants = std::unordered_map<std::string, at::Tensor>;

constexpr const char* kDeviceKey = "AOTI_DEVICE_KEY";

// Runs `body`; rethrows LibTorch's exceptions with their messages, without
// traces.
template <class Body>
auto explained(const std::filesystem::path& path, Body&& body) {
  try {
    return body();
  } catch (const c10::Error& error) {
    throw CheckpointError(format(
        "[exported] {} cannot be run: {}",
        path.string(),
        error.what_without_backtrace()));
  } catch (const std::runtime_error& error) {
    throw CheckpointError(
        format("[exported] {} cannot be run: {}", path.string(), error.what()));
  }
}

at::Device device_of(
    const std::filesystem::path& path,
    const PackageOptions& options) {
  const auto facts = explained(path, [&] {
    return Loader::load_metadata_from_package(path.string(), options.model);
  });
  const auto key = facts.find(kDeviceKey);
  const at::Device own(key == facts.end() ? "cpu" : key->second);
  const at::Device device = options.device.value_or(own);
  if (device.type() != own.type()) {
    throw ConfigError(format(
        "[exported] {} must run on a device of type '{}', for which it was "
        "compiled, but is to run on '{}'",
        path.string(),
        own.str(),
        device.str()));
  }
  return device;
}

}  // namespace

/// The graph that was compiled: what the code itself does not say.
struct CompiledGraph {
  CompiledGraph(const ExportedArchive& archive, const std::string& model)
      : program(archive.program(model)), sizes(program) {
    for (std::size_t i = 0; i < program.inputs.size(); ++i) {
      const ExportedInput& input = program.inputs[i];
      if (input.kind == InputKind::user) places.push_back(i);
      if (input.kind == InputKind::parameter || input.kind == InputKind::buffer)
        weights.insert(input.name);
    }
    std::map<std::string, std::vector<std::string>> names_of_file;
    for (const auto& [name, tensor] : archive.weights(model)) {
      names_of_file[tensor.file].push_back(name);
      known.insert(name);
    }
    for (const auto& [file, names] : names_of_file) {
      for (const std::string& name : names) ties[name] = names;
    }
    if (const auto root = program.classes.find("");
        root != program.classes.end())
      class_name = root->second;
    if (const auto facts = archive.facts()) {
      for (const auto& [name, type] : facts->modules) {
        if (name.empty()) class_name = type;
      }
    }
  }

  ExportedProgram program;
  InputSizes sizes;
  /// Positions of the arguments of forward() among the graph's inputs.
  std::vector<std::size_t> places;
  /// Names of parameters and buffers that operators read, and of all.
  std::set<std::string> weights;
  std::set<std::string> known;
  /// All names of a tensor by each of them.
  std::map<std::string, std::vector<std::string>> ties;
  std::string class_name = "Module";
};

class LoadedPackage {
 public:
  LoadedPackage(
      const std::filesystem::path& path,
      const PackageOptions& options) {
    const ExportedArchive archive(path);
    device_ = device_of(path, options);
    const auto models = archive.models();
    if (std::ranges::find(models, options.model) != models.end()) {
      graph_.emplace(archive, options.model);
      name_arguments(path);
    }
    loader_ = explained(path, [&] {
      return std::make_unique<Loader>(
          path.string(),
          options.model,
          /*run_single_threaded=*/false,
          options.num_runners,
          device_.has_index() ? device_.index() : c10::DeviceIndex(-1));
    });
  }

  [[nodiscard]] std::string class_name() const {
    return graph_ ? graph_->class_name : "Module";
  }
  [[nodiscard]] at::Device device() const { return device_; }
  [[nodiscard]] const std::vector<std::string>& input_names() const {
    return input_names_;
  }
  [[nodiscard]] const std::vector<std::string>& output_names() const {
    return *output_names_;
  }

  ExportedOutputs run(std::vector<at::Tensor> inputs) {
    check(inputs);
    // The layout for which it was compiled.
    if (graph_) {
      for (at::Tensor& input : inputs) input = input.contiguous();
    }
    const at::NoGradGuard no_gradients;
    auto outputs = loader_->boxed_run(std::move(inputs));
    const bool has_names = outputs.size() == output_names_->size();
    return {std::move(outputs), has_names ? output_names_ : nullptr};
  }

  void load(const std::map<std::string, at::Tensor>& weights) {
    const at::NoGradGuard no_gradients;
    const Constants own = loader_->get_runner()->extract_constants_map(false);
    Constants loaded;
    std::vector<std::string> complaints = unknown_in(weights, own);
    for (const auto& [name, tensor] : own) {
      const at::Tensor* const given = find(name, weights);
      if (given == nullptr) {
        if (!graph_ || graph_->weights.contains(name))
          complaints.push_back(format("'{}' is missing", printable(name)));
      } else if (given->sizes() != tensor.sizes()) {
        complaints.push_back(format(
            "'{}' must be {}, but is {}",
            printable(name),
            c10::str(tensor.sizes()),
            c10::str(given->sizes())));
      } else if (complaints.empty()) {
        // The package copies memory as it lies, so strides must match.
        loaded[name] = at::empty_strided(
                           tensor.sizes(), tensor.strides(), tensor.options())
                           .copy_(*given);
      }
    }
    if (!complaints.empty()) {
      std::ranges::sort(complaints);
      throw CheckpointError(format(
          "[exported] weights must fit the package, but {}",
          join(complaints, "; ")));
    }
    loader_->load_constants(
        loaded, /*use_inactive=*/false, /*check_full_update=*/false);
  }

 private:
  void name_arguments(const std::filesystem::path& path) {
    for (const std::size_t place : graph_->places)
      input_names_.push_back(graph_->program.inputs[place].name);
    if (graph_->program.input_tensors.size() != graph_->places.size()) {
      throw ConfigError(format(
          "[exported] the inputs of {} must be tensors, "
          "but one of {} is a number",
          path.string(),
          printable(join(input_names_, ", "))));
    }
    auto names = std::make_shared<std::vector<std::string>>();
    for (const ExportedOutput& output : graph_->program.outputs) {
      if (output.buffer.empty()) names->push_back(output.name);
    }
    output_names_ = std::move(names);
  }

  void check(const std::vector<at::Tensor>& inputs) const {
    for (const at::Tensor& input : inputs) {
      if (input.defined() && input.device().type() == device_.type()) continue;
      throw ConfigError(format(
          "[exported] inputs of a package must be on '{}', but one is {}",
          device_.str(),
          input.defined() ? "on '" + input.device().str() + "'" : "undefined"));
    }
    if (!graph_) return;
    if (inputs.size() != input_names_.size()) {
      throw ConfigError(format(
          "[exported] the model must get {} inputs ({}), but gets {}",
          input_names_.size(),
          printable(join(input_names_, ", ")),
          inputs.size()));
    }
    std::vector<c10::IValue> all(graph_->program.inputs.size());
    for (std::size_t i = 0; i < inputs.size(); ++i)
      all[graph_->places[i]] = inputs[i];
    graph_->sizes.check(all);
    for (const ExportedInputTensor& input : graph_->program.input_tensors) {
      const at::ScalarType dtype = scalar_type(input.dtype);
      const at::ScalarType given = all[input.input].toTensor().scalar_type();
      if (given == dtype) continue;
      throw ConfigError(format(
          "[exported] input '{}' must be {}, but is {}",
          printable(graph_->program.inputs[input.input].name),
          c10::toString(dtype),
          c10::toString(given)));
    }
  }

  [[nodiscard]] std::vector<std::string> unknown_in(
      const std::map<std::string, at::Tensor>& weights,
      const Constants& own) const {
    std::vector<std::string> complaints;
    for (const auto& [name, tensor] : weights) {
      if (own.contains(name) || (graph_ && graph_->known.contains(name)))
        continue;
      complaints.push_back(format("'{}' is unknown", printable(name)));
    }
    return complaints;
  }

  [[nodiscard]] const at::Tensor* find(
      const std::string& name,
      const std::map<std::string, at::Tensor>& weights) const {
    if (const auto given = weights.find(name); given != weights.end())
      return &given->second;
    if (!graph_) return nullptr;
    const auto ties = graph_->ties.find(name);
    if (ties == graph_->ties.end()) return nullptr;
    for (const std::string& other : ties->second) {
      if (const auto given = weights.find(other); given != weights.end())
        return &given->second;
    }
    return nullptr;
  }

  at::Device device_ = at::kCPU;
  /// Unset for a package without it.
  std::optional<CompiledGraph> graph_;
  std::unique_ptr<Loader> loader_;
  std::vector<std::string> input_names_;
  std::shared_ptr<const std::vector<std::string>> output_names_ =
      std::make_shared<std::vector<std::string>>();
};

}  // namespace detail

using namespace detail;

PackagedModelImpl::PackagedModelImpl(
    const std::string& class_name,
    std::unique_ptr<LoadedPackage> package)
    : Module(class_name), package_(std::move(package)) {}

PackagedModelImpl::~PackagedModelImpl() = default;

ExportedOutputs PackagedModelImpl::forward(std::vector<at::Tensor> inputs) {
  return package_->run(std::move(inputs));
}

ExportedOutputs PackagedModelImpl::forward(const ExportedInputs& inputs) {
  std::vector<at::Tensor> ordered;
  for (const std::string& name : input_names()) {
    const auto found = inputs.find(name);
    if (found != inputs.end()) ordered.push_back(found->second);
  }
  if (input_names().empty() || ordered.size() != inputs.size() ||
      ordered.size() != input_names().size()) {
    std::vector<std::string> given;
    for (const auto& [name, tensor] : inputs) given.push_back(name);
    throw ConfigError(format(
        "[exported] the inputs must be {}, but are {}",
        input_names().empty() ? "a list, since the package has no names"
                              : printable(join(input_names(), ", ")),
        given.empty() ? "none" : printable(join(given, ", "))));
  }
  return forward(std::move(ordered));
}

void PackagedModelImpl::load_weights(
    const std::map<std::string, at::Tensor>& weights) {
  package_->load(weights);
}

const std::vector<std::string>& PackagedModelImpl::input_names() const {
  return package_->input_names();
}

const std::vector<std::string>& PackagedModelImpl::output_names() const {
  return package_->output_names();
}

at::Device PackagedModelImpl::device() const { return package_->device(); }

void PackagedModelImpl::to(at::Device device, at::ScalarType dtype, bool) {
  to(dtype);
  to(device);
}

void PackagedModelImpl::to(at::ScalarType dtype, bool) {
  throw ConfigError(format(
      "[exported] the dtype of a package must stay that for which it was "
      "compiled, but is to become {}",
      c10::toString(dtype)));
}

void PackagedModelImpl::to(at::Device device, bool) {
  if (device == this->device()) return;
  throw ConfigError(format(
      "[exported] the device of a package must stay that on which it was "
      "loaded ('{}'), but is to become '{}': PackageOptions::device chooses it",
      this->device().str(),
      device.str()));
}

PackagedModel load_package(
    const std::filesystem::path& path,
    const PackageOptions& options) {
  auto package = std::make_unique<LoadedPackage>(path, options);
  const std::string class_name = package->class_name();
  return PackagedModel(
      std::make_shared<PackagedModelImpl>(class_name, std::move(package)));
}

}  // namespace accelerate
