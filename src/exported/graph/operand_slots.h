#pragma once

#include "exported/graph/instruction.h"

namespace accelerate::detail {

/// Calls `visit(slot)` for each slot that the operand reads.
template <class Visit>
void visit_slots(const Operand& operand, Visit&& visit) {
  if (operand.list) {
    for (const Operand& item : operand.list->items) visit_slots(item, visit);
  }
  if (operand.slot >= 0) visit(operand.slot);
}

/// Calls `visit(slot)` for each slot that an instruction's arguments read.
template <class Visit>
void visit_slots(const Instruction& instruction, Visit&& visit) {
  for (const Operand& argument : instruction.arguments) {
    visit_slots(argument, visit);
  }
}

}  // namespace accelerate::detail
