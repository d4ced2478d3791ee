#pragma once

#include <memory>

#include "comm/transport/transport.h"
#include "comm/transport/transports.h"

namespace accelerate::detail {

/// LibTorch's Gloo: TCP between host memories, on every machine. Listens on
/// loopback if all ranks are on this machine, else at the interface that
/// GLOO_SOCKET_IFNAME names, or the address from which this machine reaches
/// rank 0.
[[nodiscard]] std::shared_ptr<Transport> make_gloo_transport(
    const TransportSettings& settings);

}  // namespace accelerate::detail
