#pragma once

#include <functional>
#include <memory>

#include "support/run_on_ranks.h"
#include "support/thread_transport.h"
#include "support/traffic_counter.h"

namespace accelerate::testing {

/// Runs `rank` on each of `num_ranks` threads (run_on_ranks), with a counter of
/// what the rank sends over the transport of thread_transport.h.
inline void run_counted(
    int num_ranks,
    const std::function<void(const WorldOptions&, detail::TrafficCounter&)>&
        rank) {
  const auto transport = make_thread_transport();
  run_on_ranks(num_ranks, [&](WorldOptions options) {
    const auto counter = std::make_shared<detail::TrafficCounter>();
    options.own_transport = detail::make_counting_transport(transport, counter);
    options.transport.reset();
    rank(options, *counter);
  });
}

}  // namespace accelerate::testing
