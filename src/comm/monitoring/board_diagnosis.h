#pragma once

#include <optional>
#include <string>
#include <vector>

#include "comm/monitoring/world_board.h"

namespace accelerate::detail {

/// Explains why a collective of `world_ranks` failed on `rank`, as far as the
/// board shows: ranks that have ended, how and where, and their last output;
/// ranks that made different calls in the same place; ranks that failed first,
/// with their reasons; after a timeout, also ranks that did not arrive in the
/// group's call. Returns nothing if the board does not show the cause, for
/// instance because it is on another machine. Takes up to a tenth of a second,
/// since the end of a process becomes visible a little later than its effects.
std::optional<std::string> diagnose_by_board(
    const WorldBoard& board,
    const std::string& group,
    const std::vector<int>& world_ranks,
    int rank,
    bool is_timeout);

/// Whether the board shows that a rank of this world has ended, or has
/// destroyed its World.
bool is_gone(const WorldBoard& board, int rank);

/// Whether the board shows that a rank's process has ended, or that a rank that
/// is a thread is gone. A process that has destroyed its World may go on, and so
/// may what it began on devices.
bool has_ended(const WorldBoard& board, int rank);

/// Describes this rank's newest call in a group, and in a second line also where
/// it was made; empty if it made none.
std::string describe_newest_call(
    const WorldBoard& board,
    const std::string& group);

}  // namespace accelerate::detail
