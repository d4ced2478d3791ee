#include "exported/stages/graph_values.h"

#include <algorithm>
#include <numeric>
#include <unordered_map>

#include <ATen/core/enum_tag.h>

#include "exported/graph/operand_slots.h"

namespace accelerate::detail {

namespace {

bool is_tensor_type(c10::TypePtr type) {
  if (const auto list = type->cast<c10::ListType>()) {
    type = list->getElementType();
  }
  return type->kind() == c10::TypeKind::TensorType;
}

// Running statistics change although the schema of batch_norm does not say so.
bool is_changed(const c10::Argument& argument) {
  const auto* alias = argument.alias_info();
  return (alias != nullptr && alias->isWrite()) ||
      argument.name().starts_with("running_");
}

bool changes_something(const Instruction& instruction) {
  if (instruction.kind == Instruction::Kind::call) {
    const auto& arguments = instruction.op->schema().arguments();
    return std::ranges::any_of(arguments, &is_changed);
  }
  return std::ranges::any_of(instruction.branches, [](const Code& branch) {
    return std::ranges::any_of(branch.instructions, &changes_something);
  });
}

// Calls `visit(slot)` for the values that the instruction changes in place; for
// a block, all its arguments.
template <class Visit>
void visit_changed(const Instruction& instruction, Visit&& visit) {
  if (!changes_something(instruction)) return;
  if (instruction.kind != Instruction::Kind::call)
    return visit_slots(instruction, visit);
  const auto& arguments = instruction.op->schema().arguments();
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (is_changed(arguments[i])) {
      visit_slots(instruction.arguments[i], visit);
    }
  }
}

// Calls `visit(slot)` for the arguments whose memory the results may share.
template <class Visit>
void visit_shared(const Instruction& instruction, Visit&& visit) {
  if (instruction.kind == Instruction::Kind::size) return;
  if (instruction.kind != Instruction::Kind::call)
    return visit_slots(instruction, visit);
  const c10::FunctionSchema& schema = instruction.op->schema();
  // Without randomness, dropout returns its argument.
  const bool may_return_it = schema.name().find("dropout") != std::string::npos;
  for (std::size_t i = 0; i < schema.arguments().size(); ++i) {
    if (schema.arguments()[i].alias_info() != nullptr ||
        (may_return_it && i == 0)) {
      visit_slots(instruction.arguments[i], visit);
    }
  }
}

// Whether it makes tensors from its arguments alone, the same in each call.
bool is_pure(const Instruction& instruction) {
  if (instruction.kind != Instruction::Kind::call ||
      changes_something(instruction) || instruction.training_argument >= 0 ||
      instruction.dropout_argument >= 0) {
    return false;
  }
  const auto& returns = instruction.op->schema().returns();
  return !returns.empty() && is_tensor_type(returns[0].type()) &&
      !instruction.op->hasTag(at::Tag::nondeterministic_seeded);
}

bool makes_numbers(const Instruction& instruction) {
  if (instruction.kind != Instruction::Kind::call)
    return instruction.kind == Instruction::Kind::size;
  const auto& returns = instruction.op->schema().returns();
  return !returns.empty() && !is_tensor_type(returns[0].type());
}

}  // namespace

GraphValues::GraphValues(const BoundGraph& graph)
    : graph_(graph),
      code_(graph.code()),
      made_at_(static_cast<std::size_t>(code_.num_slots), kInput),
      is_bound_(made_at_.size(), false),
      alias_(made_at_.size()),
      is_changed_(made_at_.size(), false),
      is_repeatable_(code_.instructions.size(), false),
      obstacles_(code_.instructions.size(), nullptr) {
  std::iota(alias_.begin(), alias_.end(), 0);
  place_values();
  join_aliases();
  find_obstacles();
  find_repeatable();
  find_changed();
}

void GraphValues::place_values() {
  for (std::size_t i = 0; i < code_.instructions.size(); ++i) {
    for (const int result : code_.instructions[i].results) {
      if (result >= 0) made_at_[result] = i;
    }
  }
  for (std::size_t i = 0; i < code_.inputs.size(); ++i) {
    const int slot = code_.inputs[i];
    if (slot >= 0) is_bound_[slot] = graph_.inputs()[i].tensor.defined();
  }
}

int GraphValues::alias_of(int slot) {
  while (alias_[slot] != slot) slot = alias_[slot] = alias_[alias_[slot]];
  return slot;
}

void GraphValues::join(int a, int b) { alias_[alias_of(a)] = alias_of(b); }

void GraphValues::join_aliases() {
  // Tied tensors are one tensor.
  std::unordered_map<const void*, int> bound;
  for (std::size_t i = 0; i < code_.inputs.size(); ++i) {
    const at::Tensor& tensor = graph_.inputs()[i].tensor;
    if (code_.inputs[i] < 0 || !tensor.defined()) continue;
    const auto [place, is_new] =
        bound.emplace(tensor.unsafeGetTensorImpl(), code_.inputs[i]);
    if (!is_new) join(code_.inputs[i], place->second);
  }
  for (const Instruction& instruction : code_.instructions) {
    visit_shared(instruction, [&](int slot) {
      for (const int result : instruction.results) {
        if (result >= 0) join(result, slot);
      }
    });
  }
  // A buffer that gets an output's value changes with it.
  for (std::size_t i = 0; i < code_.outputs.size(); ++i) {
    const at::Tensor& target = graph_.targets()[i];
    if (!target.defined() || code_.outputs[i].slot < 0) continue;
    const auto found = bound.find(target.unsafeGetTensorImpl());
    if (found == bound.end()) continue;
    join(code_.outputs[i].slot, found->second);
    is_changed_[alias_of(found->second)] = true;
  }
  for (const Instruction& instruction : code_.instructions) {
    visit_changed(
        instruction, [&](int slot) { is_changed_[alias_of(slot)] = true; });
  }
  for (std::size_t slot = 0; slot < alias_.size(); ++slot) {
    const int root = alias_of(static_cast<int>(slot));
    if (is_changed_[slot]) is_changed_[root] = true;
  }
}

void GraphValues::forbid(
    std::size_t first,
    std::size_t last,
    const Instruction& because) {
  for (std::size_t i = first + 1; i <= last; ++i) {
    if (obstacles_[i] == nullptr) obstacles_[i] = &because;
  }
}

// A value must be changed on the stage that made it. A buffer that changes must
// be on one stage, since another's would keep its old values.
void GraphValues::find_obstacles() {
  struct Use {
    std::size_t first = kInput;
    std::size_t last_change = 0;
    std::size_t last = 0;
    const Instruction* change = nullptr;
    bool is_buffer = false;
  };
  std::unordered_map<int, Use> uses;
  for (std::size_t slot = 0; slot < alias_.size(); ++slot) {
    const int root = alias_of(static_cast<int>(slot));
    if (!is_changed_[root]) continue;
    if (is_bound_[slot]) {
      uses[root].is_buffer = true;
    } else if (made_at_[slot] == kInput) {
      uses[root].first = 0;
    }
  }
  for (std::size_t i = 0; i < code_.instructions.size(); ++i) {
    const Instruction& instruction = code_.instructions[i];
    const auto use = [&](int slot) {
      const int root = alias_of(slot);
      if (!is_changed_[root]) return;
      Use& found = uses[root];
      found.first = std::min(found.first, i);
      found.last = i;
      if (found.change == nullptr) found.change = &instruction;
    };
    visit_slots(instruction, use);
    for (const int result : instruction.results) {
      if (result >= 0) use(result);
    }
    visit_changed(instruction, [&](int slot) {
      Use& found = uses[alias_of(slot)];
      found.last_change = i;
      found.change = &instruction;
    });
  }
  for (const auto& [root, use] : uses) {
    const std::size_t last = use.is_buffer ? use.last : use.last_change;
    if (use.change != nullptr && use.first < last)
      forbid(use.first, last, *use.change);
  }
}

void GraphValues::find_changed() {
  for (std::size_t i = 0; i < code_.inputs.size(); ++i) {
    const int slot = code_.inputs[i];
    if (slot >= 0 && is_bound_[slot] && is_changed_[alias_of(slot)])
      changed_.push_back(graph_.inputs()[i].tensor);
  }
}

void GraphValues::find_repeatable() {
  std::vector<bool> is_known(made_at_.size(), false);
  for (std::size_t i = 0; i < code_.inputs.size(); ++i) {
    const BoundInput& input = graph_.inputs()[i];
    const int slot = code_.inputs[i];
    if (slot >= 0 && (input.is_given || input.is_own)) {
      is_known[slot] = !is_changed_[alias_of(slot)];
    }
  }
  for (std::size_t i = 0; i < code_.instructions.size(); ++i) {
    const Instruction& instruction = code_.instructions[i];
    bool is_repeatable = is_pure(instruction);
    if (is_repeatable) {
      visit_slots(instruction, [&](int slot) {
        is_repeatable = is_repeatable && is_known[slot];
      });
    }
    const bool has_numbers = makes_numbers(instruction);
    for (const int result : instruction.results) {
      if (result < 0) continue;
      is_repeatable = is_repeatable && !is_changed_[alias_of(result)];
      if (has_numbers) is_known[result] = true;
    }
    is_repeatable_[i] = is_repeatable;
    for (const int result : instruction.results) {
      if (result >= 0 && is_repeatable) is_known[result] = true;
    }
  }
}

}  // namespace accelerate::detail
