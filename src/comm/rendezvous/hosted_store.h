#pragma once

#include <chrono>
#include <string>

#include <accelerate/world.h>

namespace accelerate::detail {

/// The TCP store that this process serves at `port` as rank 0 of its worlds,
/// served until the process ends: a rank that makes its next World may connect
/// before rank 0 has left the one before, or after. Each call returns a client
/// of its own. Port 0 is a new server each time, which ends with its store.
/// Throws as Store::tcp. Thread-safe.
Store hosted_store(
    const std::string& host,
    int port,
    std::chrono::milliseconds timeout);

}  // namespace accelerate::detail
