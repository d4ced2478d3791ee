#pragma once

#include <memory>

#include "comm/transport/transport.h"
#include "comm/transport/transports.h"

namespace accelerate::detail {

/// LibTorch's Gloo: TCP between host memories, available everywhere. Listens on
/// loopback if all ranks are on this node; otherwise on the interface that
/// GLOO_SOCKET_IFNAME names, or at the address from which this node reaches
/// rank 0.
[[nodiscard]] std::shared_ptr<Transport> make_gloo_transport(
    const TransportSettings& settings);

}  // namespace accelerate::detail
