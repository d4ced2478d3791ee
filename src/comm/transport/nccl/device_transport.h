#pragma once

#include <memory>

#include "comm/transport/transport.h"
#include "comm/transport/transports.h"

namespace accelerate::detail {

/// Whether ranks without NCCL, or that share a device, are rejected, or
/// communicate through host memory after a warning.
enum class NcclUse { if_possible, required };

/// Uses `host` for tensors in host memory, and NCCL for those on the ranks'
/// devices, which are of the `known` type. Returns `host` itself if the ranks
/// compute elsewhere. Throws ConfigError, if NCCL is required, for a device or
/// a library that does not have it.
std::shared_ptr<Transport> with_nccl(
    std::shared_ptr<Transport> host,
    const TransportSettings& settings,
    NcclUse use,
    c10::DeviceType known = c10::DeviceType::CUDA);

}  // namespace accelerate::detail
