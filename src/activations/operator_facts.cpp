#include "activations/operator_facts.h"

#include <string>
#include <unordered_map>

#include <ATen/core/enum_tag.h>

namespace accelerate::detail {

namespace {

// These operators change what autograd knows about a tensor, not its values.
bool only_marks(const c10::FunctionSchema& schema) {
  const std::string& name = schema.name();
  return name == "aten::requires_grad_" || name == "aten::detach_" ||
      name == "aten::retain_grad" || name == "aten::set_requires_grad";
}

// Normalisations write running statistics although their schemas do not say so.
bool changes_unannounced(const c10::Argument& argument) {
  return argument.name() == "running_mean" || argument.name() == "running_var";
}

bool holds_tensors(const c10::TypePtr& type) {
  if (type->kind() == c10::TypeKind::TensorType) return true;
  for (const c10::TypePtr& inner : type->containedTypes()) {
    if (holds_tensors(inner)) return true;
  }
  return false;
}

OperatorFacts find_facts(const c10::OperatorHandle& operation) {
  OperatorFacts facts;
  const c10::FunctionSchema& schema = operation.schema();
  for (const c10::Argument& value : schema.returns())
    facts.leaves_trace = facts.leaves_trace || holds_tensors(value.type());
  for (const c10::Argument& argument : schema.arguments()) {
    const bool changes = changes_unannounced(argument) ||
        (argument.alias_info() != nullptr && argument.alias_info()->isWrite() &&
         !only_marks(schema));
    facts.changes_argument.push_back(changes);
    facts.leaves_trace = facts.leaves_trace || changes;
  }
  facts.is_random = operation.hasTag(at::Tag::nondeterministic_seeded);
  return facts;
}

}  // namespace

const OperatorFacts& facts_of(const c10::OperatorHandle& operation) {
  // Thread-local so that the lookup, once per operator, takes no lock.
  thread_local std::unordered_map<const c10::FunctionSchema*, OperatorFacts>
      known;
  const auto [entry, is_new] = known.try_emplace(&operation.schema());
  if (is_new) entry->second = find_facts(operation);
  return entry->second;
}

}  // namespace accelerate::detail
