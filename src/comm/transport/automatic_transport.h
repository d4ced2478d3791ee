#pragma once

#include <memory>

#include "comm/transport/transport.h"
#include "comm/transport/transports.h"

namespace accelerate::detail {

/// Uses shared memory for groups whose ranks can all share it, Gloo for those
/// that cannot, and both for groups where some ranks can. Warns once if ranks
/// on one machine cannot share memory.
[[nodiscard]] std::shared_ptr<Transport> make_automatic_transport(
    const TransportSettings& settings);

}  // namespace accelerate::detail
