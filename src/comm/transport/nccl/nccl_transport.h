#pragma once

#include <functional>
#include <memory>

#include <c10/core/Device.h>

#include "comm/transport/nccl/nccl_library.h"
#include "comm/transport/transport.h"
#include "comm/transport/transports.h"

namespace accelerate::detail {

/// Connects ranks through NCCL. Each has a `device` of its own, on which all
/// tensors lie. A call returns once the operation is queued there; the wait() of
/// its work has the current stream wait for it, and the host only for
/// barriers. `watch_ranks`: as in TransportSettings.
std::shared_ptr<Transport> make_nccl_transport(
    std::shared_ptr<const NcclLibrary> library,
    c10::Device device,
    std::function<RankIsGone()> watch_ranks = nullptr);

}  // namespace accelerate::detail
