#include "parallel/tensor/split_layers.h"

#include <torch/nn/module.h>

#include <accelerate/parallel_layers.h>

#include "modules/name_pattern.h"
#include "parallel/tensor/split_planner.h"

namespace accelerate::detail {

std::vector<std::int64_t>
begins_of(const SplitParameter& split, std::int64_t size, int num_ranks) {
  if (split.num_heads == 0) return slice_begins(size, num_ranks);
  std::vector<std::int64_t> begins = slice_begins(split.num_heads, num_ranks);
  for (std::int64_t& begin : begins) begin *= size / split.num_heads;
  return begins;
}

std::vector<std::vector<IndexRange>> rows_by_head(
    const SplitParameter& split,
    int num_ranks) {
  const std::vector<std::int64_t> heads =
      slice_begins(split.num_heads, num_ranks);
  std::vector<std::vector<IndexRange>> rows(
      static_cast<std::size_t>(num_ranks));
  std::int64_t begin = 0;
  for (const std::int64_t size : split.projections) {
    const std::int64_t head_size = size / split.num_heads;
    for (std::size_t rank = 0; rank < rows.size(); ++rank) {
      rows[rank].emplace_back(
          begin + heads[rank] * head_size, begin + heads[rank + 1] * head_size);
    }
    begin += size;
  }
  return rows;
}

std::vector<SplitParameter> plan_splits(
    const torch::nn::Module& module,
    const ParameterTable& table,
    const ParallelizePlan& plan,
    int num_ranks) {
  SplitPlanner planner(table, num_ranks, divided_programs_in(module));
  std::vector<bool> is_matched(plan.size(), false);
  std::vector<std::string> names;
  if (const auto* const layer = dynamic_cast<const ParallelLayer*>(&module))
    planner.add("(model)", module, layer->parallel_style());
  for (const auto& item :
       module.named_modules(std::string(), /*include_self=*/false)) {
    names.push_back(item.key());
    bool is_taken = false;
    for (std::size_t i = 0; i < plan.size(); ++i) {
      if (!matches_name(plan[i].first, item.key())) continue;
      is_matched[i] = true;
      if (!is_taken) planner.add(item.key(), *item.value(), plan[i].second);
      is_taken = true;
    }
    const auto* const layer =
        dynamic_cast<const ParallelLayer*>(item.value().get());
    if (layer != nullptr && !is_taken)
      planner.add(item.key(), *item.value(), layer->parallel_style());
  }
  for (std::size_t i = 0; i < plan.size(); ++i) {
    if (!is_matched[i]) planner.complain_of_pattern(plan[i].first, names);
  }
  return planner.finish();
}

}  // namespace accelerate::detail
