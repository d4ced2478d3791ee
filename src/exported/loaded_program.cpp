#include "exported/loaded_program.h"

#include <utility>

#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "exported/interpreter.h"

namespace accelerate::detail {

namespace {

const at::Tensor& tensor_named(
    const std::string& name,
    const LoadedTensors& tensors) {
  const auto found = tensors.find(name);
  if (found != tensors.end()) return found->second;
  throw CheckpointError(format(
      "[exported] the program cannot be read: it must have the tensor '{}', "
      "but has not",
      printable(name)));
}

// Moves a tensor that belongs to a program to the model's device.
at::Tensor moved(at::Tensor& tensor, c10::Device device) {
  if (tensor.device() == device) return tensor;
  // Its values would be lost on meta.
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
    Input bound;
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
  }
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
  for (Input& input : inputs_) {
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
  for (const Input& input : inputs_) {
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
  auto values = run_code(code_, std::move(all), context);
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

}  // namespace accelerate::detail
