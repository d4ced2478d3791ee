#pragma once

#include <accelerate/world.h>

namespace accelerate::detail {

/// Returns true on all ranks of the group if `own` is true on any. Collective.
bool is_true_on_any_rank(const Group& group, bool own);

}  // namespace accelerate::detail
