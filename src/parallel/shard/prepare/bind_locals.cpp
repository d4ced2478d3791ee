#include "parallel/shard/prepare/bind_locals.h"

#include <utility>

#include <torch/optim/optimizer.h>

#include <accelerate/error.h>

#include "base/text.h"

namespace accelerate::detail {

void bind_locals(
    torch::optim::Optimizer& optimizer,
    const ParameterTable& table) {
  auto& states = optimizer.state();
  for (auto& group : optimizer.param_groups()) {
    for (at::Tensor& parameter : group.params()) {
      const Parameter* row = table.find(parameter);
      if (row == nullptr || row->local.is_same(row->tensor)) continue;
      const auto state = states.find(parameter.unsafeGetTensorImpl());
      if (state != states.end()) {
        if (!row->layout.is_unsharded()) {
          throw ConfigError(format(
              "[parallel] the optimizer has stepped on \"{}\" before "
              "prepare(), which shards the parameter; prepare a new optimizer, "
              "and load its state with load_state()",
              row->name));
        }
        auto kept = std::move(state->second);
        states.erase(state);
        states[row->local.unsafeGetTensorImpl()] = std::move(kept);
      }
      parameter = row->local;
    }
  }
}

}  // namespace accelerate::detail
