#include "exported/divide/divided_call.h"

#include <ATen/core/List.h>

#include <accelerate/error.h>

#include "base/text/text.h"

namespace accelerate::detail {

namespace {

void append_tensors(
    const Operand& operand,
    const Code& code,
    std::vector<int>& slots) {
  if (operand.list) {
    for (const Operand& item : operand.list->items)
      append_tensors(item, code, slots);
  }
  if (operand.slot >= 0 && code.tensors[operand.slot].is_known)
    slots.push_back(operand.slot);
}

}  // namespace

std::vector<int> DividedCall::tensors() const {
  std::vector<int> slots;
  for (const Operand& operand : instruction_.arguments)
    append_tensors(operand, code_, slots);
  // These operators take only the dtype of their second tensor.
  const bool has_example = name() == "aten::type_as" || name() == "aten::to";
  if (has_example && slots.size() > 1) slots.resize(1);
  return slots;
}

const Operand* DividedCall::operand(std::string_view argument) const {
  const auto index = instruction_.op->schema().argumentIndexWithName(argument);
  return index ? &instruction_.arguments[static_cast<std::size_t>(*index)]
               : nullptr;
}

int DividedCall::slot(std::string_view argument) const {
  const Operand* const found = operand(argument);
  return found != nullptr && is_tensor(found->slot) ? found->slot : -1;
}

bool DividedCall::is_computed(std::string_view argument) const {
  const Operand* const found = operand(argument);
  return found != nullptr && (found->slot >= 0 || found->list);
}

std::int64_t DividedCall::number(
    std::string_view argument,
    std::int64_t otherwise) const {
  const Operand* const found = operand(argument);
  if (found == nullptr || found->constant.isNone()) return otherwise;
  if (found->constant.isBool()) return found->constant.toBool() ? 1 : 0;
  return found->constant.isInt() ? found->constant.toInt() : otherwise;
}

std::int64_t DividedCall::dim(std::string_view argument, std::int64_t num_dims)
    const {
  const std::int64_t found = number(argument, 0);
  return found < 0 ? found + num_dims : found;
}

std::vector<std::int64_t> DividedCall::dims(
    std::string_view argument,
    std::int64_t num_dims) const {
  std::vector<std::int64_t> found;
  const Operand* const list = operand(argument);
  if (list == nullptr) return found;
  if (list->constant.isInt()) found = {list->constant.toInt()};
  if (list->constant.isIntList()) found = list->constant.toIntVector();
  for (std::int64_t& dim : found) {
    if (dim < 0) dim += num_dims;
  }
  return found;
}

const std::vector<std::int64_t>& DividedCall::result_sizes(
    std::size_t result) const {
  static const std::vector<std::int64_t> none;
  const auto& results = instruction_.results;
  if (result >= results.size() || !is_tensor(results[result])) return none;
  return sizes(results[result]);
}

void DividedCall::set_results(const ValueSplit& split) {
  for (const int slot : instruction_.results) {
    if (slot >= 0) values_[slot].split = split;
  }
}

void DividedCall::set_size(
    std::string_view argument,
    std::int64_t dim,
    const ValueSplit& split) {
  const auto index = static_cast<std::size_t>(dim);
  const auto place = static_cast<std::size_t>(
      *instruction_.op->schema().argumentIndexWithName(argument));
  Operand& list = instruction_.arguments[place];
  const auto local = [&](bool is_constant, std::int64_t full) {
    if (is_constant && full == -1) return full;
    if (!is_constant || split.begins.empty()) {
      refuse(
          split,
          "whole, since a size of its result is computed by the program");
    }
    const auto rank = static_cast<std::size_t>(rank_);
    return split.begins[rank + 1] - split.begins[rank];
  };
  if (list.list) {
    // The list is shared with the graph of full tensors.
    list.list = std::make_shared<Operand::List>(*list.list);
    Operand& item = list.list->items.at(index);
    item.constant =
        local(item.slot < 0, item.slot < 0 ? item.constant.toInt() : 0);
    return;
  }
  std::vector<std::int64_t> sizes = list.constant.toIntVector();
  sizes.at(index) = local(true, sizes.at(index));
  list.constant = c10::List<std::int64_t>(sizes);
}

void DividedCall::refuse(const ValueSplit& split, std::string_view how) const {
  throw ConfigError(format(
      "[exported] {} must get its inputs {}, but tensor parallelism divides "
      "dimension {} of one, a result of \"{}\"; let that layer return all of "
      "its result (ColwiseParallel{{.output_layouts = Replicate{{}}}}) and the "
      "next one take it (.input_layouts = Replicate{{}}), or leave both out of "
      "parallelize_plan",
      place(),
      how,
      split.dim,
      split.layer));
}

}  // namespace accelerate::detail
