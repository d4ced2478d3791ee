#pragma once

#include <chrono>
#include <functional>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include <accelerate/world.h>

#include "support/run_on_ranks.h"

namespace accelerate::testing {

/// Runs `rank` on ranks that share memory.
inline void run_in_memory_worlds(
    int num_ranks,
    const std::function<void(const World&)>& rank,
    std::optional<std::chrono::milliseconds> timeout = std::nullopt) {
  run_on_ranks(num_ranks, [&](WorldOptions options) {
    options.transport = "shared_memory";
    options.own_transport = nullptr;
    if (timeout) options.timeout = timeout;
    rank(World(options));
  });
}

/// Runs `rank` on ranks that believe they are on several machines; `sizes` has
/// the number of ranks per machine.
inline void run_on_machines(
    const std::vector<int>& sizes,
    const std::function<void(const World&)>& rank,
    std::optional<std::chrono::milliseconds> timeout = std::nullopt) {
  const int num_ranks = std::accumulate(sizes.begin(), sizes.end(), 0);
  run_on_ranks(num_ranks, [&](WorldOptions options) {
    options.transport = "automatic";
    options.own_transport = nullptr;
    if (timeout) options.timeout = timeout;
    int first = 0;
    std::size_t machine = 0;
    while (*options.rank >= first + sizes[machine]) first += sizes[machine++];
    options.local_rank = *options.rank - first;
    options.local_size = sizes[machine];
    rank(World(options));
  });
}

}  // namespace accelerate::testing
