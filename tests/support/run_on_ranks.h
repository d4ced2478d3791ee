#pragma once

#include <functional>
#include <utility>

#include <accelerate/world.h>

namespace accelerate::testing {

/// Runs `rank` once on each of `num_ranks` threads, with options that make each
/// a rank of one world over a shared in-memory store. All have ended when it
/// returns. ACCELERATE_TEST_TRANSPORT=threads in the environment connects them
/// by thread_transport.h. Throws what the first failing rank threw, an error that is not
/// about a lost peer before one that is.
void run_on_ranks(
    int num_ranks,
    const std::function<void(const WorldOptions&)>& rank);

/// The same, with the World made already.
void run_in_worlds(
    int num_ranks,
    const std::function<void(const World&)>& rank);

}  // namespace accelerate::testing
