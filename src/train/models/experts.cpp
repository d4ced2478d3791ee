#include <accelerate/accelerator.h>
#include <accelerate/experts.h>

#include <ATen/Functions.h>

#include "parallel/expert/expert_losses.h"
#include "train/session/prepared.h"

namespace accelerate::detail {

std::vector<ExpertLoad> take_expert_loads(PreparedModel& model) {
  if (!model.module) throw_released("the model again");
  std::vector<ExpertLoad> loads;
  std::vector<std::int64_t> counts;
  for (const auto& [name, layer] : expert_layers(*model.module)) {
    loads.push_back(layer->take_load());
    ExpertLoad& load = loads.back();
    load.layer = model.table.name_of(name);
    counts.insert(counts.end(), load.assigned.begin(), load.assigned.end());
    counts.push_back(load.dropped);
  }
  if (loads.empty()) return loads;
  const at::Tensor sums = at::tensor(counts, at::kLong);
  if (!model.evaluation_mode) model.mesh.gradient_group().all_reduce(sums);
  const auto* next = sums.const_data_ptr<std::int64_t>();
  for (ExpertLoad& load : loads) {
    for (std::int64_t& assigned : load.assigned) assigned = *next++;
    load.dropped = *next++;
  }
  return loads;
}

}  // namespace accelerate::detail
