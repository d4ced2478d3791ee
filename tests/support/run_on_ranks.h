#pragma once

#include <functional>
#include <utility>

#include <accelerate/world.h>

namespace accelerate::testing {

/// Runs `rank` once on each of `num_ranks` threads, with options that make each
/// a rank of one world over a shared in-memory store. Returns when all have
/// ended. ACCELERATE_TEST_TRANSPORT in the environment names the transport that
/// connects them; `threads` is that of thread_transport.h. Rethrows the error of the first rank that failed,
/// preferring errors that are not about a lost peer.
void run_on_ranks(
    int num_ranks,
    const std::function<void(const WorldOptions&)>& rank);

/// Whether thread_transport.h connects the ranks. Other transports take longer;
/// suites of very many combinations may try a share of them there.
bool ranks_connect_as_threads();

/// The same, with a World made for each rank.
void run_in_worlds(
    int num_ranks,
    const std::function<void(const World&)>& rank);

}  // namespace accelerate::testing
