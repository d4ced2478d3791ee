#include "exported/divide/program_divider.h"

#include <algorithm>
#include <optional>
#include <utility>

#include <accelerate/error.h>

#include "base/text/text.h"

namespace accelerate::detail {

namespace {

// Operators whose results do not depend on the values of their arguments.
bool loses_gradients(const std::string& name) {
  return name == "aten::detach" || name.ends_with("_like") ||
      name.starts_with("aten::new_");
}

// Operators that change the shape of one tensor, or its values one by one.
bool keeps_elements(const DividedCall& call) {
  static constexpr std::string_view kViews[] = {
      "aten::_unsafe_view",
      "aten::alias",
      "aten::clone",
      "aten::contiguous",
      "aten::expand",
      "aten::flatten",
      "aten::permute",
      "aten::reshape",
      "aten::slice",
      "aten::squeeze",
      "aten::t",
      "aten::to",
      "aten::transpose",
      "aten::type_as",
      "aten::unsqueeze",
      "aten::view",
  };
  return call.instruction().op->hasTag(at::Tag::pointwise) ||
      std::ranges::find(kViews, call.name()) != std::end(kViews);
}

}  // namespace

ProgramDivider::ProgramDivider(
    const std::vector<DividedParameter>& parameters,
    int rank)
    : divided_(parameters), rank_(rank) {}

int ProgramDivider::index_of(const Input& input) {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (parameters_[i].tensor.is_same(input.parameter))
      return static_cast<int>(i);
  }
  Parameter parameter{input.parameter, input.name};
  for (const DividedParameter& each : divided_) {
    if (each.tensor.is_same(input.parameter)) parameter.divided = &each;
  }
  parameters_.push_back(std::move(parameter));
  return static_cast<int>(parameters_.size()) - 1;
}

void ProgramDivider::divide(
    Code& code,
    const std::vector<Input>& inputs,
    const std::vector<std::string>& results) {
  Values values(static_cast<std::size_t>(code.num_slots));
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (code.inputs[i] < 0) continue;
    DividedValue& value = values[code.inputs[i]];
    value.has_gradient = inputs[i].has_gradient &&
        code.tensors[static_cast<std::size_t>(code.inputs[i])].is_floating;
    if (!inputs[i].parameter.defined()) continue;
    value.parameter = index_of(inputs[i]);
    const auto* const found = parameters_[value.parameter].divided;
    value.is_slice = found != nullptr && !found->begins.empty();
  }
  values = follow(code, std::move(values), /*records_gradients=*/true);
  for (std::size_t i = 0; i < code.outputs.size(); ++i) {
    if (code.outputs[i].slot < 0) continue;
    const DividedValue& value = values[code.outputs[i].slot];
    use_with_full(value, "the results");
    if (!value.split && !value.is_slice) continue;
    throw ConfigError(format(
        "[exported] the result '{}' must be whole on each rank, but tensor "
        "parallelism divides {}; let that layer return all of its result "
        "(ColwiseParallel{{.output_layouts = Replicate{{}}}})",
        i < results.size() ? printable(results[i]) : std::string(),
        value.split ? format(
                          "dimension {} of it, as a result of \"{}\"",
                          value.split->dim,
                          value.split->layer)
                    : std::string("it")));
  }
  require_one_use();
}

ProgramDivider::Values
ProgramDivider::follow(Code& code, Values values, bool records_gradients) {
  for (Instruction& instruction : code.instructions)
    step(instruction, code, values, records_gradients);
  return values;
}

void ProgramDivider::step(
    Instruction& instruction,
    const Code& code,
    Values& values,
    bool records_gradients) {
  using Kind = Instruction::Kind;
  if (instruction.kind == Kind::size) return;
  if (instruction.kind != Kind::call)
    return step_into(instruction, values, records_gradients);
  DividedCall call(instruction, code, values, rank_);
  call_operator(call, values, records_gradients);
}

// Follows values through a graph within the graph.
void ProgramDivider::step_into(
    Instruction& instruction,
    Values& values,
    bool records_gradients) {
  using Kind = Instruction::Kind;
  const bool is_block =
      instruction.kind == Kind::set_grad || instruction.kind == Kind::autocast;
  if (!is_block) {
    bool has_gradient = false;
    for (const Operand& operand : instruction.arguments) {
      if (operand.slot < 0) continue;
      const DividedValue& value = values[operand.slot];
      use_with_full(value, instruction.place);
      has_gradient |= value.has_gradient || value.parameter >= 0;
      if (!value.split && !value.is_slice) continue;
      throw ConfigError(format(
          "[exported] {} must get full tensors, but tensor parallelism "
          "divides one, of \"{}\"; leave that layer out of parallelize_plan",
          instruction.place,
          value.split ? value.split->layer : divided(value).module));
    }
    for (const int slot : instruction.results) {
      if (slot >= 0) values[slot].has_gradient = has_gradient;
    }
    return;
  }
  const std::size_t first = instruction.kind == Kind::autocast ? 4 : 1;
  const c10::IValue& flag = instruction.arguments[0].constant;
  const bool records = records_gradients &&
      (instruction.kind == Kind::autocast || !flag.isBool() || flag.toBool());
  Code& branch = instruction.branches[0];
  Values inside(static_cast<std::size_t>(branch.num_slots));
  for (std::size_t i = 0; i < branch.inputs.size(); ++i) {
    const std::size_t at = first + i;
    if (branch.inputs[i] < 0 || at >= instruction.arguments.size()) continue;
    const int slot = instruction.arguments[at].slot;
    if (slot < 0) continue;
    inside[branch.inputs[i]] = values[slot];
    inside[branch.inputs[i]].base = -1;
  }
  inside = follow(branch, std::move(inside), records);
  for (std::size_t i = 0; i < instruction.results.size(); ++i) {
    const int slot = instruction.results[i];
    if (slot < 0 || i >= branch.outputs.size()) continue;
    if (branch.outputs[i].slot < 0) continue;
    values[slot] = inside[branch.outputs[i].slot];
    values[slot].base = -1;
  }
}

void ProgramDivider::call_operator(
    DividedCall& call,
    Values& values,
    bool records_gradients) {
  const std::vector<int> slots = call.tensors();
  const bool has_slice = std::ranges::any_of(
      slots, [&](int slot) { return call.value(slot).is_slice; });
  if (has_slice && use_slice(call)) return;
  const bool has_split = std::ranges::any_of(
      slots, [&](int slot) { return call.value(slot).split.has_value(); });
  if (has_split) {
    if (call.name() == "aten::sym_size") {
      // Sizes along other dimensions are the same on all ranks.
      const int slot = slots.front();
      const ValueSplit& split = *call.value(slot).split;
      if (call.dim("dim", call.num_dims(slot)) == split.dim)
        call.refuse(split, "whole along the dimension whose size it reads");
      return;
    }
    meet(call);
    divide_results(call);
  }
  set_gradients(call, values, records_gradients);
}

// Notes that parameters which every rank has are combined with divided values.
void ProgramDivider::meet(DividedCall& call) {
  const std::vector<int> slots = call.tensors();
  std::optional<ValueSplit> split;
  for (const int slot : slots) {
    if (call.value(slot).split) split = call.value(slot).split;
  }
  for (const int slot : slots) {
    const DividedValue& value = call.value(slot);
    if (value.split) continue;
    if (value.parameter >= 0) {
      parameters_[value.parameter].with_slices = call.place();
    } else if (value.has_gradient) {
      call.refuse(
          *split,
          "divided alike, or whole, since each rank would otherwise have a "
          "part of the gradient");
    }
  }
}

void ProgramDivider::use_with_full(
    const DividedValue& value,
    const std::string& place) {
  if (value.parameter >= 0 && !value.is_slice)
    parameters_[value.parameter].with_full = place;
}

// Whether gradients flow to the results, and from which parameter alone.
void ProgramDivider::set_gradients(
    const DividedCall& call,
    Values& values,
    bool records_gradients) {
  const std::vector<int> slots = call.tensors();
  bool has_split = false, has_gradient = false;
  int parameter = -1;
  bool has_one = keeps_elements(call);
  for (const int slot : slots) {
    const DividedValue& value = call.value(slot);
    has_split |= value.split.has_value();
    has_gradient |= value.has_gradient || value.parameter >= 0;
    has_one = has_one && !value.has_gradient && !value.split &&
        (value.parameter < 0 || parameter < 0 || parameter == value.parameter);
    if (value.parameter >= 0) parameter = value.parameter;
  }
  const auto& results = call.instruction().results;
  const bool has_floating = std::ranges::any_of(
      results, [&](int slot) { return slot >= 0 && call.is_floating(slot); });
  if (loses_gradients(call.name()) || !records_gradients || !has_floating)
    return;
  has_one = has_one && parameter >= 0;
  if (!has_one && !has_split) {
    for (const int slot : slots) use_with_full(call.value(slot), call.place());
  }
  const bool is_view = !slots.empty() && keeps_elements(call);
  for (const int slot : results) {
    if (slot < 0 || !call.is_floating(slot)) continue;
    DividedValue& result = values[slot];
    if (is_view) {
      const int base = values[slots.front()].base;
      result.base = base < 0 ? slots.front() : base;
    }
    if (has_one) {
      result.parameter = parameter;
    } else {
      result.has_gradient = has_gradient || has_split;
    }
  }
  const auto& arguments = call.instruction().op->schema().arguments();
  const auto* const alias =
      arguments.empty() ? nullptr : arguments.front().alias_info();
  if (alias == nullptr || !alias->isWrite() || !has_gradient) return;
  // Values that share the memory that it writes.
  const int written = slots.front();
  const int base = values[written].base < 0 ? written : values[written].base;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (static_cast<int>(i) == base || values[i].base == base)
      values[i].has_gradient = true;
  }
}

// A gradient is summed over ranks or not, whatever operator it comes from.
void ProgramDivider::require_one_use() const {
  for (const Parameter& each : parameters_) {
    if (!each.tensor.requires_grad() || each.with_full.empty()) continue;
    if (!each.with_slices.empty()) {
      throw ConfigError(format(
          "[exported] parameter \"{}\" must be used either with values that "
          "tensor parallelism divides or with others, but is used with both: "
          "by {}, and by {}",
          each.name,
          each.with_slices,
          each.with_full));
    }
    if (each.divided != nullptr && each.divided->sums_gradient) {
      throw ConfigError(format(
          "[exported] parameter \"{}\" must be used with values that tensor "
          "parallelism divides, since the plan sums its gradient "
          "(SequenceParallel), but {} uses it with values that every rank has; "
          "leave \"{}\" out of parallelize_plan",
          each.name,
          each.with_full,
          each.divided->module));
    }
  }
}

std::vector<at::Tensor> ProgramDivider::summed() const {
  std::vector<at::Tensor> found;
  for (const Parameter& each : parameters_) {
    if (!each.with_slices.empty()) found.push_back(each.tensor);
  }
  return found;
}

}  // namespace accelerate::detail
