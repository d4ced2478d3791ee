#include "parallel/tensor/divided_additions.h"

#include <algorithm>
#include <utility>

#include <ATen/Functions.h>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "comm/autograd/region.h"
#include "gate/gate_entry.h"
#include "parallel/random_region.h"

namespace accelerate::detail {

namespace {

std::shared_ptr<AddedProducts> added_by(const TensorWatch& watch) {
  return std::dynamic_pointer_cast<AddedProducts>(watch.keeper);
}

bool is_last_dim(const TensorPlacement& placement) {
  const accelerate::Shard* const slice = slice_in(placement);
  return slice != nullptr && slice->dim == -1;
}

// Which of a layer's input and result ranks divide; unset if it is a sequence.
std::optional<AddedDivision> division_of(const SplitProduct& product) {
  const bool takes_all = is_replicated(product.input);
  const bool returns_all = is_replicated(product.output);
  if (takes_all && returns_all) return AddedDivision::none;
  if (!product.is_rowwise && takes_all && is_last_dim(product.output))
    return AddedDivision::outputs;
  if (product.is_rowwise && is_last_dim(product.input) && returns_all)
    return AddedDivision::inputs;
  return std::nullopt;
}

std::optional<AddedDivision> division_of(
    const SplitParameter& split,
    bool is_embedding) {
  if (!is_embedding)
    return split.product ? division_of(*split.product) : std::nullopt;
  const bool is_whole =
      split.embedding && is_replicated(split.embedding->output);
  return is_whole ? std::optional(AddedDivision::none) : std::nullopt;
}

// The split of a matrix of the keeper, like that of the weight.
SplitParameter matrix_split(
    const SplitParameter& weight,
    const std::string& name,
    AddedDivision division) {
  SplitParameter split{
      .name = name,
      .module = weight.module,
      .dim = division == AddedDivision::outputs ? 0 : 1,
      .num_heads = weight.num_heads};
  if (division == AddedDivision::outputs)
    split.projections = weight.projections;
  return split;
}

}  // namespace

bool has_only_added_products(const at::Tensor& tensor) {
  const GateEntry* const entry = entry_of(tensor);
  return entry != nullptr && !entry->watches.empty() &&
      std::all_of(
             entry->watches.begin(),
             entry->watches.end(),
             [](const TensorWatch& watch) {
               return added_by(watch) != nullptr;
             });
}

std::vector<DividedAddition> divide_additions(
    const ParameterTable& table,
    std::vector<SplitParameter>& splits) {
  std::vector<DividedAddition> additions;
  std::vector<SplitParameter> added;
  std::vector<std::string> complaints;
  for (const SplitParameter& split : splits) {
    const Parameter* const row = table.find(split.name);
    const GateEntry* const entry =
        row == nullptr ? nullptr : entry_of(row->tensor);
    if (entry == nullptr) continue;
    for (const TensorWatch& watch : entry->watches) {
      std::shared_ptr<AddedProducts> keeper = added_by(watch);
      if (keeper == nullptr) continue;
      const AddedProducts::Layer layer = keeper->added_to(watch.unit);
      const auto division = division_of(split, layer.is_embedding);
      if (!division || !layer.complaint.empty()) {
        complaints.push_back(format(
            "\"{}\" must {}",
            split.module,
            layer.complaint.empty()
                ? "must take and return full tensors, or slices of features, "
                  "rather than of a sequence"
                : layer.complaint));
        continue;
      }
      const bool has_outputs = *division == AddedDivision::outputs;
      if (*division != AddedDivision::none) {
        for (const at::Tensor& each : has_outputs ? layer.second : layer.first)
          added.push_back(
              matrix_split(split, table.find(each)->name, *division));
      }
      additions.push_back(
          {std::move(keeper), watch.unit, split.name, *division});
    }
  }
  if (!complaints.empty()) {
    throw ConfigError(format(
        "[parallel] parallelize_plan cannot divide these layers with adapters: "
        "{}; merge the adapters before prepare() (merge_and_unload()), or "
        "leave the layers out of the plan",
        join(complaints, "; ")));
  }
  splits.insert(splits.end(), added.begin(), added.end());
  return additions;
}

void start_additions(
    const std::vector<DividedAddition>& additions,
    const ParameterTable& table,
    const Group& group,
    const std::shared_ptr<const SplitKeeper>& keeper) {
  for (const DividedAddition& each : additions) {
    DividedProducts how;
    how.weight_sizes = table.find(each.weight)->tensor.sizes().vec();
    if (each.division == AddedDivision::outputs) {
      how.pass = [group](const at::Tensor& tensor) {
        return copy_to_region(tensor, group);
      };
    } else if (each.division == AddedDivision::inputs) {
      how.pass = [group](const at::Tensor& tensor) {
        return reduce_from_region(tensor, group);
      };
    }
    const bool is_slice = each.division == AddedDivision::inputs;
    how.drop = [keeper, group, is_slice](const at::Tensor& x, double p) {
      const RandomNumbersOf numbers(
          keeper.get(),
          random_stream_of(Axis::tensor, group.rank()),
          is_slice && keeper->is_in_forward());
      return at::dropout(x, p, /*train=*/true);
    };
    each.keeper->divide(each.unit, std::move(how));
  }
}

}  // namespace accelerate::detail
