#pragma once

#include <memory>

#include "comm/transport/transport.h"

namespace accelerate::detail {

/// Takes tensors on the host to `host`, and those on devices to `device`; what
/// `device` lacks, such as messages, goes through host memory. Adapts both.
/// Barriers are the host's.
std::shared_ptr<Connection> route_by_device(
    std::shared_ptr<Connection> host,
    std::shared_ptr<Connection> device);

}  // namespace accelerate::detail
