// What layers with divided weights take and return.
#include <cstddef>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "exported/divide/program_divider.h"

namespace accelerate::detail {

namespace {

// Where the slices of an evenly divided size begin.
std::vector<std::int64_t> even_begins(
    std::int64_t size,
    std::size_t num_ranks) {
  std::vector<std::int64_t> begins;
  const auto ranks = static_cast<std::int64_t>(num_ranks);
  for (std::int64_t rank = 0; rank <= ranks; ++rank)
    begins.push_back(size / ranks * rank + size % ranks * rank / ranks);
  return begins;
}

// The split of a tensor of these sizes that a layer takes or returns; unset for
// Replicate. `begins`: of the features that the layer divides.
std::optional<ValueSplit> split_in(
    const TensorPlacement& placement,
    const std::vector<std::int64_t>& sizes,
    const DividedParameter& parameter,
    bool has_features_of_layer) {
  const auto* const shard = std::get_if<accelerate::Shard>(&placement);
  if (shard == nullptr) return std::nullopt;
  const auto num_dims = static_cast<std::int64_t>(sizes.size());
  ValueSplit split{
      shard->dim < 0 ? shard->dim + num_dims : shard->dim,
      {},
      parameter.module};
  if (split.dim != num_dims - 1 || sizes.empty()) return split;
  split.begins = has_features_of_layer
      ? parameter.begins
      : even_begins(sizes.back(), parameter.begins.size() - 1);
  return split;
}

std::string split_text(const std::optional<ValueSplit>& split) {
  if (!split) return "whole";
  return format(
      "divided along dimension {}{}",
      split->dim,
      split->begins.empty() ? std::string()
                            : format(" at {}", at::IntArrayRef(split->begins)));
}

// The first slot of an instruction's argument; negative for constants.
int slot_at(const DividedCall& call, std::size_t index) {
  const auto& arguments = call.instruction().arguments;
  return index < arguments.size() ? arguments[index].slot : -1;
}

// The slot of an operator's first result; negative if nothing reads it.
int first_result(const DividedCall& call) {
  const std::vector<int>& results = call.instruction().results;
  return results.empty() ? -1 : results.front();
}

}  // namespace

bool ProgramDivider::use_slice(DividedCall& call) {
  const std::string& name = call.name();
  const auto is_slice = [&](std::size_t index) {
    const int slot = slot_at(call, index);
    return slot >= 0 && call.value(slot).is_slice;
  };
  const auto is_transposed = [&](std::size_t index) {
    return is_slice(index) && call.value(slot_at(call, index)).is_transposed;
  };
  // Whether it is a matrix of inputs x outputs now.
  const auto is_of_inputs = [&](std::size_t index) {
    if (!is_slice(index)) return false;
    const auto& product = divided(call.value(slot_at(call, index))).product;
    return is_transposed(index) != (product && product->is_transposed);
  };
  const std::size_t weight_at = name == "aten::addmm" ? 2 : 1;
  if (name == "aten::linear" && is_slice(1) && !is_transposed(1) &&
      !is_of_inputs(1)) {
    multiply(call, slot_at(call, 0), slot_at(call, 1));
    return true;
  }
  if ((name == "aten::addmm" || name == "aten::matmul" || name == "aten::mm") &&
      is_of_inputs(weight_at)) {
    multiply(call, slot_at(call, weight_at - 1), slot_at(call, weight_at));
    return true;
  }
  if (name == "aten::embedding" && is_slice(0) && !is_transposed(0)) {
    look_up(call, slot_at(call, 0), slot_at(call, 1));
    return true;
  }
  const int first = slot_at(call, 0);
  const bool is_transpose = is_slice(0) &&
      (name == "aten::t" || name == "aten::numpy_T" ||
       (name == "aten::transpose" &&
        call.dim("dim0", 2) != call.dim("dim1", 2)) ||
       (name == "aten::permute" &&
        call.dims("dims", 2) == std::vector<std::int64_t>{1, 0}));
  if (is_transpose && first_result(call) >= 0) {
    DividedValue& result = call.value(first_result(call));
    result = call.value(first);
    result.is_transposed = !result.is_transposed;
    return true;
  }
  for (const int slot : call.tensors()) {
    const DividedValue& value = call.value(slot);
    if (!value.is_slice) continue;
    throw ConfigError(format(
        "[exported] {} must get all of the weight or bias of \"{}\", but "
        "tensor parallelism divides it: it knows products with the weight of a "
        "torch.nn.Linear or a Conv1D, and embeddings; leave \"{}\" out of "
        "parallelize_plan",
        call.place(),
        divided(value).module,
        divided(value).module));
  }
  return false;
}

void ProgramDivider::multiply(DividedCall& call, int input, int weight) {
  const DividedParameter& parameter = divided(call.value(weight));
  if (parameter.has_projections || !parameter.product) {
    throw ConfigError(format(
        "[exported] the plan of \"{}\" must have no projections, but has: an "
        "exported program takes its result apart at constants; let it return "
        "all of its result (ColwiseParallel{{.output_layouts = "
        "Replicate{{}}}})",
        parameter.module));
  }
  const auto& layer = *parameter.product;
  const auto wanted =
      split_in(layer.input, call.sizes(input), parameter, layer.is_rowwise);
  const std::optional<ValueSplit>& given = call.value(input).split;
  if (wanted.has_value() != given.has_value() ||
      (wanted && !wanted->is_like(*given))) {
    throw ConfigError(format(
        "[exported] the input of {} must be {}, as the plan of \"{}\" says, "
        "but is {}{}",
        call.place(),
        split_text(wanted),
        parameter.module,
        split_text(given),
        given ? format(", as a result of \"{}\"", given->layer)
              : std::string()));
  }
  if (!given) use_with_full(call.value(input), call.place());
  const int result = first_result(call);
  if (result < 0) return;
  call.value(result).split =
      split_in(layer.output, call.result_sizes(), parameter, !layer.is_rowwise);
  call.value(result).has_gradient = true;
}

void ProgramDivider::look_up(DividedCall& call, int weight, int indices) {
  const DividedParameter& parameter = divided(call.value(weight));
  if (indices >= 0 && call.value(indices).split)
    call.refuse(*call.value(indices).split, "whole");
  if (!parameter.embedding || call.number("scale_grad_by_freq", 0) != 0) {
    throw ConfigError(format(
        "[exported] {} must get all of \"{}\", which counts how often an index "
        "occurs, but tensor parallelism divides it; leave it out of "
        "parallelize_plan",
        call.place(),
        parameter.module));
  }
  const auto& layer = *parameter.embedding;
  const int result = first_result(call);
  if (result < 0) return;
  call.value(result).split =
      split_in(layer.output, call.result_sizes(), parameter, !layer.is_rowwise);
  call.value(result).has_gradient = true;
}

}  // namespace accelerate::detail
