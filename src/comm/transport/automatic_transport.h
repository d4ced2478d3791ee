#pragma once

#include <memory>

#include "comm/transport/transport.h"
#include "comm/transport/transports.h"

namespace accelerate::detail {

/// Shared memory for groups whose ranks can share it, Gloo for others; both for
/// groups some of whose ranks can. Warns once if ranks of one machine cannot.
[[nodiscard]] std::shared_ptr<Transport> make_automatic_transport(
    const TransportSettings& settings);

}  // namespace accelerate::detail
