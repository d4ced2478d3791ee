#include "exported/load/loaded_program.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/scalar_tensor.h>
#include <c10/core/InferenceMode.h>

#include <accelerate/error.h>

#include "base/text/text.h"

namespace accelerate::detail {

namespace {

const at::Tensor& tensor_named(
    const std::string& name,
    const LoadedTensors& tensors) {
  const auto found = tensors.find(name);
  if (found != tensors.end()) return found->second;
  throw CheckpointError(format(
      "[exported] the program cannot be read: it lacks the tensor '{}'",
      printable(name)));
}

// Moves a tensor that belongs to a program to the model's device.
at::Tensor moved(at::Tensor& tensor, c10::Device device) {
  if (tensor.device() == device) return tensor;
  // Moving it to meta would lose its values.
  if (device.is_meta()) return tensor.to(device);
  const c10::InferenceMode training_tensors(false);
  tensor = tensor.to(device);
  return tensor;
}

}  // namespace

BoundGraph::BoundGraph(
    const ExportedProgram& program,
    Code code,
    const LoadedTensors& tensors)
    : code_(std::move(code)), sizes_(program) {
  using Kind = ExportedInput::Kind;
  for (const ExportedInput& input : program.inputs) {
    BoundInput bound;
    switch (input.kind) {
      case Kind::user:
        bound.is_given = true;
        input_names_.push_back(input.name);
        break;
      case Kind::fixed:
        break;
      case Kind::hidden_buffer:
      case Kind::constant:
        bound.is_own = true;
        [[fallthrough]];
      case Kind::parameter:
        if (input.kind == Kind::parameter) bound.parameter = input.name;
        [[fallthrough]];
      case Kind::buffer:
        bound.tensor = tensor_named(input.name, tensors);
        break;
    }
    inputs_.push_back(std::move(bound));
  }
  for (const ExportedOutput& output : program.outputs) {
    targets_.push_back(
        output.buffer.empty() ? at::Tensor()
                              : tensor_named(output.buffer, tensors));
    result_names_.push_back(
        output.buffer.empty() ? output.name : output.buffer);
  }
}

BoundGraph::BoundGraph(
    Code code,
    std::vector<BoundInput> inputs,
    std::vector<std::string> input_names,
    InputSizes sizes,
    std::vector<at::Tensor> targets)
    : code_(std::move(code)),
      inputs_(std::move(inputs)),
      input_names_(std::move(input_names)),
      sizes_(std::move(sizes)),
      targets_(std::move(targets)) {}

bool BoundGraph::is_embedding(const at::Tensor& parameter) const {
  for (std::size_t i = 0; i < inputs_.size(); ++i) {
    if (!inputs_[i].tensor.is_same(parameter) || code_.inputs[i] < 0) continue;
    for (const Instruction& instruction : code_.instructions) {
      if (instruction.op &&
          instruction.op->operator_name().name == "aten::embedding" &&
          instruction.arguments[0].slot == code_.inputs[i])
        return true;
    }
  }
  return false;
}

Code BoundGraph::divided(ProgramDivider& divider) const {
  Code code = code_;
  std::vector<ProgramDivider::Input> inputs;
  for (const BoundInput& input : inputs_) {
    const bool is_parameter = !input.parameter.empty();
    inputs.push_back(
        {is_parameter ? input.tensor : at::Tensor(),
         input.parameter,
         input.has_gradient});
  }
  divider.divide(code, inputs, result_names_);
  return code;
}

std::vector<c10::IValue> BoundGraph::all_inputs(
    std::vector<c10::IValue> given,
    c10::Device device) {
  if (given.size() != input_names_.size()) {
    throw ConfigError(format(
        "[exported] the model must get {} inputs ({}), but gets {}",
        input_names_.size(),
        printable(join(input_names_, ", ")),
        given.size()));
  }
  std::vector<c10::IValue> all;
  all.reserve(inputs_.size());
  std::size_t next = 0;
  for (BoundInput& input : inputs_) {
    if (input.is_given) {
      all.push_back(std::move(given[next++]));
    } else if (input.is_own) {
      all.emplace_back(moved(input.tensor, device));
    } else if (input.tensor.defined()) {
      all.emplace_back(input.tensor);
    } else {
      all.emplace_back();
    }
  }
  return all;
}

// The device of the weights, or of the inputs while those are on meta because
// they are offloaded or have no values yet.
std::optional<c10::Device> BoundGraph::device_of(
    const std::vector<c10::IValue>& given) const {
  for (const BoundInput& input : inputs_) {
    if (!input.is_own && input.tensor.defined() && !input.tensor.is_meta())
      return input.tensor.device();
  }
  for (const c10::IValue& value : given) {
    if (value.isTensor() && value.toTensor().defined())
      return value.toTensor().device();
  }
  return std::nullopt;
}

std::vector<c10::IValue> BoundGraph::run(
    std::vector<c10::IValue> given,
    RunContext context) {
  context.device = device_of(given).value_or(context.device);
  auto all = all_inputs(std::move(given), context.device);
  sizes_.check(all);
  std::vector<c10::IValue> results;
  auto values = run_code(
      other_code_ != nullptr ? *other_code_ : code_, std::move(all), context);
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!targets_[i].defined()) {
      results.push_back(std::move(values[i]));
      continue;
    }
    const at::NoGradGuard no_grad;
    targets_[i].copy_(values[i].toTensor());
  }
  return results;
}

void BoundGraph::follow_root(
    const std::function<bool(const torch::nn::Module&)>& is_chosen) {
  const std::function<void(Code&)> visit = [&](Code& code) {
    for (Instruction& instruction : code.instructions) {
      if (instruction.module && is_chosen(*instruction.module))
        instruction.module = nullptr;
      for (Code& branch : instruction.branches) visit(branch);
    }
  };
  visit(code_);
}

std::vector<at::Tensor> LoadedProgram::divide(
    const std::vector<DividedParameter>& parameters,
    int rank) {
  ProgramDivider divider(parameters, rank);
  Divided divided{training.divided(divider), std::nullopt};
  if (evaluation) divided.evaluation = evaluation->divided(divider);
  divided_ = std::move(divided);
  set_full(false);
  return divider.summed();
}

void LoadedProgram::set_full(bool is_full) {
  if (!divided_) return;
  training.replace_code(is_full ? nullptr : &divided_->training);
  if (evaluation)
    evaluation->replace_code(is_full ? nullptr : &*divided_->evaluation);
}

std::vector<c10::IValue> LoadedProgram::run(
    std::vector<c10::IValue> given,
    bool is_training) {
  BoundGraph& graph = !is_training && evaluation ? *evaluation : training;
  return graph.run(
      std::move(given),
      {.is_training = is_training,
       .records_gradients = at::GradMode::is_enabled(),
       .exported_on = exported_on,
       .device = exported_on});
}

at::Tensor result_tensor(const c10::IValue& value) {
  if (value.isTensor()) return value.toTensor();
  if (value.isBool()) return at::scalar_tensor(value.toBool(), at::kBool);
  if (value.isInt()) return at::scalar_tensor(value.toInt(), at::kLong);
  if (value.isDouble()) return at::scalar_tensor(value.toDouble(), at::kDouble);
  return {};
}

}  // namespace accelerate::detail
