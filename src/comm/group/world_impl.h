#pragma once

#include <map>
#include <memory>
#include <optional>
#include <vector>

#include <accelerate/world.h>

#include "comm/group/group_impl.h"
#include "config/rank_variables.h"

namespace accelerate::detail {

struct WorldImpl {
  RankVariables identity;
  at::Device device = at::kCPU;
  std::shared_ptr<WorldCore> core = std::make_shared<WorldCore>();
  Group all_ranks;
  // Made on first use.
  std::optional<Group> node_ranks;
  // Number of groups made so far per list of ranks: gives each group its own
  // keys.
  std::map<std::vector<int>, int> group_counts;
};

}  // namespace accelerate::detail
