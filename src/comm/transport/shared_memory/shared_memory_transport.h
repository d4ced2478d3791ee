#pragma once

#include <exception>
#include <memory>
#include <optional>
#include <string>

#include <accelerate/error.h>

#include "comm/transport/shared_memory/shared_memory_connection.h"
#include "comm/transport/transport.h"
#include "comm/transport/transports.h"

namespace accelerate::detail {

/// Thrown if some ranks of a group cannot map the same memory.
class CannotShareMemory : public DistributedError {
 public:
  using DistributedError::DistributedError;
};

/// Host memory that the ranks of one machine map together: no copies through
/// the system, no sockets.
class SharedMemoryTransport final : public Transport {
 public:
  explicit SharedMemoryTransport(const TransportSettings& settings);

  [[nodiscard]] const TransportFacts& facts() const override;
  [[nodiscard]] std::shared_ptr<Connection> connect(
      const ConnectRequest& request) override;
  /// Connects the group as connect() does. Throws CannotShareMemory, with the
  /// reason, on all ranks of the group if any rank cannot share.
  [[nodiscard]] std::shared_ptr<SharedMemoryConnection> share(
      const ConnectRequest& request) const;
  [[nodiscard]] std::optional<std::string> describe_failure(
      const std::exception& error) const override;

 private:
  [[nodiscard]] bool may_spin() const;

  int node_;
  int num_local_ranks_;
  int num_processors_;
};

[[nodiscard]] std::shared_ptr<Transport> make_shared_memory_transport(
    const TransportSettings& settings);

}  // namespace accelerate::detail
