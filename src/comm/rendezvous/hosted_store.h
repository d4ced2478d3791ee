#pragma once

#include <chrono>
#include <string>

#include <accelerate/world.h>

namespace accelerate::detail {

/// Returns a new client of the TCP store that this process serves at `port` as
/// rank 0 of its worlds. The server runs until the process ends: a rank that
/// makes its next World can connect before or after rank 0 has left the
/// previous one. Port 0 starts a new server each time, which ends with its
/// store. Throws like Store::tcp. Thread-safe.
Store hosted_store(
    const std::string& host,
    int port,
    std::chrono::milliseconds timeout);

}  // namespace accelerate::detail
