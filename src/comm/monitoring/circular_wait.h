#pragma once

#include <string>
#include <utility>
#include <vector>

#include "launch/board/rank_activity.h"

namespace accelerate::detail {

/// A rank, and the call in which its program waits.
using WaitingCall = std::pair<int, GroupCall>;

/// The chain of waits by which `awaited` waits for `own_rank`, on the same
/// machine: the first is `awaited`'s call, which cannot end before the next
/// rank, or in the end `own_rank`, has made its own. Empty if there is no such
/// chain. `own_rank` waits outside collectives for something that `awaited`
/// does next.
///
/// Only calls in which the program's thread is blocked count, and only ranks
/// that such a call certainly needs. A chain is proven if a later look finds
/// the same one, and what `own_rank` waits for has not arrived in between.
std::vector<WaitingCall> find_circular_wait(
    const std::vector<RankActivity>& ranks,
    int own_rank,
    int awaited);

/// Whether both are the same ranks in the same calls.
bool is_same_wait(
    const std::vector<WaitingCall>& left,
    const std::vector<WaitingCall>& right);

/// The message for `own_rank`, which waits in `call`.
std::string describe_circular_wait(
    const std::vector<WaitingCall>& waits,
    int own_rank,
    const std::string& call);

}  // namespace accelerate::detail
