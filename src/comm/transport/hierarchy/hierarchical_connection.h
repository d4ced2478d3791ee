#pragma once

#include <memory>
#include <vector>

#include "comm/transport/hierarchy/islands.h"
#include "comm/transport/shared_memory/shared_memory_connection.h"
#include "comm/transport/transport.h"

namespace accelerate::detail {

/// A connection of ranks on several islands: inside of an island by memory,
/// between islands by messages of `network`, which connects all of them.
/// `inside`: this rank's island; null if it is alone there. `world_ranks`: for
/// messages.
[[nodiscard]] std::shared_ptr<Connection> make_hierarchical_connection(
    std::shared_ptr<SharedMemoryConnection> inside,
    std::shared_ptr<Connection> network,
    Islands islands,
    std::vector<int> world_ranks);

}  // namespace accelerate::detail
