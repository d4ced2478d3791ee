#pragma once

#include <string>
#include <unordered_map>

#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type_base.h>

#include "exported/graph/instruction.h"
#include "format/exported/exported_graph.h"

namespace accelerate::detail {

/// The slots of a graph's values, by name.
class Slots {
 public:
  /// The value's slot, a new one for a new name.
  int of(const std::string& name) {
    return slots_.try_emplace(name, static_cast<int>(slots_.size()))
        .first->second;
  }
  /// The slot of a value that has one; negative for others.
  [[nodiscard]] int find(const std::string& name) const {
    const auto found = slots_.find(name);
    return found == slots_.end() ? -1 : found->second;
  }
  [[nodiscard]] int count() const { return static_cast<int>(slots_.size()); }

 private:
  std::unordered_map<std::string, int> slots_;
};

/// The argument in the form that the operator's schema requires: numbers as 0-d
/// tensors that do not promote other operands, lists with the schema's element
/// type.
Operand operand_for(
    const ExportedArgument& argument,
    const c10::Argument& wanted,
    Slots& slots);
/// The argument in a form that does not depend on a schema.
Operand plain_operand(const ExportedArgument& argument, Slots& slots);

/// A number as Python passes it to an operator on tensors.
at::Tensor wrapped_number(const c10::IValue& number);

}  // namespace accelerate::detail
