#pragma once

#include <memory>

#include "comm/transport/shared_memory/progress_engine.h"
#include "comm/transport/transport.h"

namespace accelerate::detail {

[[nodiscard]] const TransportFacts& shared_memory_facts();

/// A connection whose engine has been entered by all ranks.
[[nodiscard]] std::shared_ptr<Connection> make_shared_memory_connection(
    std::shared_ptr<ProgressEngine> engine);

}  // namespace accelerate::detail
