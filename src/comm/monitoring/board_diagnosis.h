#pragma once

#include <optional>
#include <string>
#include <vector>

#include "comm/monitoring/world_board.h"

namespace accelerate::detail {

/// Why a collective of the ranks `world_ranks` failed on `rank`, as far as the
/// board shows it: ranks that have ended, with how, where and their last
/// output; different calls that ranks made in the same place; ranks that failed
/// first, with their reasons; after a `timeout` also ranks that did not arrive
/// in the group's call. Nothing if the board does not tell, for instance
/// because the cause is on another machine. Takes up to a tenth of a second,
/// since the end of a process shows a little later than its effects.
std::optional<std::string> diagnose_by_board(
    const WorldBoard& board,
    const std::string& group,
    const std::vector<int>& world_ranks,
    int rank,
    bool is_timeout);

}  // namespace accelerate::detail
