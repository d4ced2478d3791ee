#pragma once

#include <memory>

#include <accelerate/error.h>

#include "comm/transport/transport.h"
#include "comm/transport/transports.h"

namespace accelerate::detail {

/// Some ranks of a group cannot map one memory.
class CannotShareMemory : public DistributedError {
 public:
  using DistributedError::DistributedError;
};

/// Host memory that the ranks of one machine map together: no copies through
/// the system, no sockets. connect() throws CannotShareMemory, with the
/// reason, on all ranks of a group if it is so for some.
[[nodiscard]] std::shared_ptr<Transport> make_shared_memory_transport(
    const TransportSettings& settings);

}  // namespace accelerate::detail
