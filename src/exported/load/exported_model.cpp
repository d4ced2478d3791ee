#include <accelerate/exported_model.h>

#include <algorithm>
#include <utility>

#include <c10/util/Exception.h>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "exported/graph/dtypes.h"
#include "exported/load/loaded_program.h"
#include "exported/load/module_tree.h"
#include "format/exported/describe.h"

namespace accelerate {

using namespace detail;

namespace {

void require_kept_dtype(const torch::nn::Module& module, at::ScalarType dtype) {
  for (const auto& item : module.named_parameters()) {
    const at::ScalarType now = item.value().scalar_type();
    if (!at::isFloatingType(now) || now == dtype) continue;
    throw ConfigError(format(
        "[exported] the dtype of '{}' must stay {}, but is to become {}: casts "
        "are part of an exported program. Convert the model in Python, and "
        "export it again",
        item.key(),
        c10::toString(now),
        c10::toString(dtype)));
  }
}

}  // namespace

ExportedOutputs::ExportedOutputs(
    std::vector<at::Tensor> tensors,
    std::shared_ptr<const std::vector<std::string>> names)
    : tensors_(std::move(tensors)), names_(std::move(names)) {}

const std::vector<std::string>& ExportedOutputs::names() const {
  static const std::vector<std::string> none;
  return names_ ? *names_ : none;
}

const at::Tensor& ExportedOutputs::operator[](std::size_t index) const {
  if (index < tensors_.size()) return tensors_[index];
  throw ConfigError(format(
      "[exported] the index of a result must be below {}, but is {}",
      tensors_.size(),
      index));
}

const at::Tensor& ExportedOutputs::operator[](std::string_view name) const {
  for (std::size_t i = 0; i < std::min(names().size(), tensors_.size()); ++i) {
    if (names()[i] == name) return tensors_[i];
  }
  throw ConfigError(format(
      "[exported] the name of a result must be one of {}, but is '{}'",
      printable(join(names(), ", ")),
      printable(name)));
}

bool ExportedOutputs::contains(std::string_view name) const {
  return std::ranges::find(names(), name) != names().end();
}

void ExportedModuleImpl::to(
    at::Device device,
    at::ScalarType dtype,
    bool non_blocking) {
  require_kept_dtype(*this, dtype);
  Module::to(device, non_blocking);
}

void ExportedModuleImpl::to(at::ScalarType dtype, bool) {
  require_kept_dtype(*this, dtype);
}

void ExportedModuleImpl::to(at::Device device, bool non_blocking) {
  Module::to(device, non_blocking);
}

std::shared_ptr<torch::nn::Module> ExportedModuleImpl::clone(
    const std::optional<at::Device>&) const {
  throw ConfigError(
      "[exported] an exported program cannot be cloned: call load_exported() "
      "again, and copy the values of the parameters");
}

ExportedModelImpl::ExportedModelImpl(
    const std::string& class_name,
    std::unique_ptr<LoadedProgram> program)
    : ExportedModuleImpl(class_name), program_(std::move(program)) {}

ExportedModelImpl::~ExportedModelImpl() = default;

ExportedOutputs ExportedModelImpl::forward(std::vector<c10::IValue> inputs) {
  const auto values = program_->run(std::move(inputs), is_training());
  std::vector<at::Tensor> tensors;
  tensors.reserve(values.size());
  for (const c10::IValue& value : values)
    tensors.push_back(result_tensor(value));
  return {std::move(tensors), program_->output_names};
}

ExportedOutputs ExportedModelImpl::forward(const ExportedInputs& inputs) {
  std::vector<c10::IValue> ordered;
  std::vector<std::string> missing;
  for (const std::string& name : input_names()) {
    const auto found = inputs.find(name);
    if (found == inputs.end()) {
      missing.push_back(name);
    } else {
      ordered.emplace_back(found->second);
    }
  }
  if (!missing.empty() || inputs.size() != input_names().size()) {
    std::vector<std::string> given;
    for (const auto& [name, tensor] : inputs) given.push_back(name);
    throw ConfigError(format(
        "[exported] the inputs must be {}, but are {}",
        printable(join(input_names(), ", ")),
        given.empty() ? "none" : printable(join(given, ", "))));
  }
  return forward(std::move(ordered));
}

const std::vector<std::string>& ExportedModelImpl::input_names() const {
  return program_->training.input_names();
}

const std::vector<std::string>& ExportedModelImpl::output_names() const {
  return *program_->output_names;
}

std::optional<at::ScalarType> ExportedModelImpl::autocast_dtype() const {
  return program_->autocast;
}

ParallelizePlan ExportedModelImpl::tensor_parallel_plan() const {
  return parse_tp_plan(program_->tp_plan);
}

ParallelizePlan ExportedModelImpl::own_plan() const {
  return tensor_parallel_plan();
}

bool ExportedModelImpl::is_embedding(const at::Tensor& parameter) const {
  return program_->training.is_embedding(parameter);
}

std::vector<at::Tensor> ExportedModelImpl::divide(
    const std::vector<DividedParameter>& parameters,
    int rank) {
  return program_->divide(parameters, rank);
}

void ExportedModelImpl::set_full(bool is_full) { program_->set_full(is_full); }

bool ExportedModelImpl::is_described() const { return program_->is_described; }

std::size_t ExportedModelImpl::num_instructions() const {
  return program_->training.num_instructions();
}

}  // namespace accelerate
