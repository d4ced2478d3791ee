#include "exported/stages/graph_part.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/text/text.h"
#include "exported/graph/compiler.h"
#include "exported/graph/operand_slots.h"

namespace accelerate::detail {

namespace {

Operand slot_operand(int slot) {
  Operand operand;
  operand.slot = slot;
  return operand;
}

// Lists are shared, but the last uses that are marked in them differ by part.
void copy_lists(std::vector<Operand>& operands) {
  for (Operand& operand : operands) {
    if (!operand.list) continue;
    operand.list = std::make_shared<Operand::List>(*operand.list);
    copy_lists(operand.list->items);
  }
}

}  // namespace

/// What a part runs, and which values it needs.
struct DividedGraph::Chosen {
  /// In order; those before the part's first one are repeated.
  std::vector<std::size_t> instructions;
  /// Slots that are read, by slot.
  std::vector<bool> is_read;
  /// Slots of values that other parts make, in order.
  std::vector<int> given;
};

DividedGraph::Chosen DividedGraph::choose(std::size_t begin, std::size_t end)
    const {
  const Code& code = graph_.code();
  Chosen chosen;
  chosen.is_read.assign(static_cast<std::size_t>(code.num_slots), false);
  auto& is_read = chosen.is_read;
  const auto read = [&](int slot) { is_read[slot] = true; };
  for (std::size_t i = 0; i < code.outputs.size(); ++i) {
    if (returns(i, begin, end)) visit_slots(code.outputs[i], read);
  }
  if (end < size()) {
    for (const int slot : values_before(end)) read(slot);
  }
  std::vector<bool> is_made(is_read.size(), false);
  for (std::size_t i = end; i-- > 0;) {
    const Instruction& instruction = code.instructions[i];
    const bool is_wanted = std::ranges::any_of(
        instruction.results,
        [&](int result) { return result >= 0 && is_read[result]; });
    if (i < begin || values_.is_repeatable(i)) {
      if (!is_wanted || !values_.is_repeatable(i)) continue;
    }
    chosen.instructions.push_back(i);
    for (const int result : instruction.results) {
      if (result >= 0) is_made[result] = true;
    }
    visit_slots(instruction, read);
  }
  std::ranges::reverse(chosen.instructions);
  for (std::size_t slot = 0; slot < is_read.size(); ++slot) {
    if (is_read[slot] && !is_made[slot] &&
        !values_.is_bound(static_cast<int>(slot))) {
      chosen.given.push_back(static_cast<int>(slot));
    }
  }
  return chosen;
}

// Whether a part returns this output of the graph: a buffer changes where its
// new value is made, results come from the last part.
bool DividedGraph::returns(
    std::size_t output,
    std::size_t begin,
    std::size_t end) const {
  if (!graph_.targets()[output].defined()) return end == size();
  const int slot = graph_.code().outputs[output].slot;
  if (slot < 0 || values_.made_at(slot) == GraphValues::kInput) return false;
  return values_.made_at(slot) >= begin && values_.made_at(slot) < end;
}

std::vector<int> DividedGraph::values_before(std::size_t begin) const {
  return choose(begin, size()).given;
}

struct DividedGraph::Part {
  Code code;
  std::vector<BoundInput> inputs;
  std::vector<std::string> names;
  std::vector<at::Tensor> targets;
};

void DividedGraph::add_inputs(
    Part& part,
    const std::vector<bool>& is_read,
    std::size_t begin) const {
  const Code& code = graph_.code();
  const bool is_first = begin == 0;
  if (is_first) {
    part.names = graph_.input_names();
  } else {
    for (const int slot : values_before(begin)) {
      part.code.inputs.push_back(slot);
      part.inputs.push_back({.is_given = true, .has_gradient = true});
      part.names.push_back(format("value {}", slot));
    }
  }
  for (std::size_t i = 0; i < code.inputs.size(); ++i) {
    const BoundInput& input = graph_.inputs()[i];
    const int slot = code.inputs[i];
    if (input.tensor.defined() && slot >= 0 && is_read[slot]) {
      part.code.inputs.push_back(slot);
      part.inputs.push_back(input);
    } else if (is_first) {
      // Sizes are checked by the places of inputs.
      const bool is_bound = input.tensor.defined();
      part.code.inputs.push_back(is_bound ? -1 : slot);
      part.inputs.push_back(is_bound ? BoundInput() : input);
    }
  }
}

void DividedGraph::add_outputs(Part& part, std::size_t begin, std::size_t end)
    const {
  const Code& code = graph_.code();
  for (std::size_t i = 0; i < code.outputs.size(); ++i) {
    if (!returns(i, begin, end)) continue;
    part.code.outputs.push_back(code.outputs[i]);
    part.targets.push_back(graph_.targets()[i]);
  }
  copy_lists(part.code.outputs);
  if (end == size()) return;
  for (const int slot : values_before(end)) {
    part.code.outputs.push_back(slot_operand(slot));
    part.targets.emplace_back();
  }
}

BoundGraph DividedGraph::part(std::size_t begin, std::size_t end) const {
  const Chosen chosen = choose(begin, end);
  Part part;
  part.code.num_slots = graph_.code().num_slots;
  part.code.tensors = graph_.code().tensors;
  add_inputs(part, chosen.is_read, begin);
  for (const std::size_t i : chosen.instructions) {
    part.code.instructions.push_back(graph_.code().instructions[i]);
    Instruction& added = part.code.instructions.back();
    copy_lists(added.arguments);
    // Repeated instructions have no mode, and need no module.
    if (i < begin) added.module = nullptr;
  }
  add_outputs(part, begin, end);
  mark_last_uses(part.code);
  return {
      std::move(part.code),
      std::move(part.inputs),
      std::move(part.names),
      begin == 0 ? graph_.sizes() : InputSizes(),
      std::move(part.targets)};
}

}  // namespace accelerate::detail
