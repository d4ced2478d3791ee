#include "exported/graph/operand.h"

#include <utility>
#include <variant>

#include <ATen/ScalarOps.h>
#include <ATen/core/List.h>

#include "exported/graph/dtypes.h"

namespace accelerate::detail {

namespace {

using c10::TypeKind;
using c10::TypePtr;

bool is(const TypePtr& type, TypeKind kind) {
  return type && type->kind() == kind;
}

Operand constant(c10::IValue value) {
  Operand operand;
  operand.constant = std::move(value);
  return operand;
}

// A number, in the type that the operator takes.
c10::IValue converted(c10::IValue value, const TypePtr& wanted) {
  if (is(wanted, TypeKind::TensorType)) {
    return value.isScalar() ? wrapped_number(value) : value;
  }
  if (is(wanted, TypeKind::FloatType) && value.isInt()) {
    return static_cast<double>(value.toInt());
  }
  if (is(wanted, TypeKind::IntType) && value.isBool()) {
    return std::int64_t{value.toBool() ? 1 : 0};
  }
  return value;
}

Operand slot_operand(int slot, const TypePtr& wanted) {
  Operand operand;
  operand.slot = slot;
  if (is(wanted, TypeKind::TensorType)) {
    operand.conversion = Operand::Conversion::wrapped_tensor;
  } else if (is(wanted, TypeKind::FloatType)) {
    operand.conversion = Operand::Conversion::floating;
  }
  return operand;
}

Operand typed_operand(
    const ExportedArgument& argument,
    TypePtr wanted,
    std::size_t length,
    Slots& slots);

Operand
list_operand(const ExportedList& items, const TypePtr& element, Slots& slots) {
  auto list = std::make_shared<Operand::List>();
  list->element = element;
  bool is_constant = true;
  for (const ExportedArgument& item : items) {
    list->items.push_back(typed_operand(item, element, 1, slots));
    is_constant = is_constant && list->items.back().slot < 0;
  }
  // Lists of tensors are made anew, since operators may change them.
  const bool has_tensors =
      is(element, TypeKind::TensorType) || is(element, TypeKind::OptionalType);
  Operand operand;
  if (is_constant && !has_tensors) {
    c10::impl::GenericList values(element);
    for (Operand& item : list->items) {
      values.push_back(std::move(item.constant));
    }
    operand.constant = c10::IValue(std::move(values));
  } else {
    operand.list = std::move(list);
  }
  return operand;
}

// `length`: how often a single value is repeated where a list is wanted.
Operand typed_operand(
    const ExportedArgument& argument,
    TypePtr wanted,
    std::size_t length,
    Slots& slots) {
  if (std::holds_alternative<std::monostate>(argument.value)) return {};
  if (is(wanted, TypeKind::OptionalType)) {
    wanted = wanted->expectRef<c10::OptionalType>().getElementType();
  }
  const auto* items = std::get_if<ExportedList>(&argument.value);
  if (is(wanted, TypeKind::ListType)) {
    const TypePtr element = wanted->expectRef<c10::ListType>().getElementType();
    if (items != nullptr) return list_operand(*items, element, slots);
    return list_operand(ExportedList(length, argument), element, slots);
  }
  if (items != nullptr) {
    return list_operand(*items, c10::TensorType::get(), slots);
  }
  if (const std::string* name = argument.reference()) {
    return slot_operand(slots.of(*name), wanted);
  }
  return constant(converted(constant_value(argument), wanted));
}

}  // namespace

at::Tensor wrapped_number(const c10::IValue& number) {
  at::Tensor tensor = c10::scalar_to_tensor(number.toScalar());
  tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
  return tensor;
}

Operand operand_for(
    const ExportedArgument& argument,
    const c10::Argument& wanted,
    Slots& slots) {
  const auto length = static_cast<std::size_t>(wanted.N().value_or(1));
  return typed_operand(argument, wanted.type(), length, slots);
}

Operand plain_operand(const ExportedArgument& argument, Slots& slots) {
  return typed_operand(argument, nullptr, 1, slots);
}

}  // namespace accelerate::detail
