#pragma once

#include <memory>
#include <vector>

#include "comm/transport/hierarchy/islands.h"
#include "comm/transport/shared_memory/shared_memory_connection.h"
#include "comm/transport/transport.h"

namespace accelerate::detail {

/// Returns a connection of ranks on several islands: through memory within an
/// island, and through `network`, which connects all ranks, between islands.
/// `inside`: this rank's island; null if it is alone there. `world_ranks`: for
/// error messages.
[[nodiscard]] std::shared_ptr<Connection> make_hierarchical_connection(
    std::shared_ptr<SharedMemoryConnection> inside,
    std::shared_ptr<Connection> network,
    Islands islands,
    std::vector<int> world_ranks);

}  // namespace accelerate::detail
