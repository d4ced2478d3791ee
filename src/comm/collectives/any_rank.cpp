#include "comm/collectives/any_rank.h"

#include <cstdint>

#include <ATen/Functions.h>

namespace accelerate::detail {

bool is_true_on_any_rank(const Group& group, bool own) {
  const at::Tensor any = at::full({}, own ? 1 : 0, at::kLong);
  group.all_reduce(any, ReduceOp::max);
  return any.item<std::int64_t>() != 0;
}

}  // namespace accelerate::detail
