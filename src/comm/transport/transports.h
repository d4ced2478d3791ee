#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "comm/transport/transport.h"
#include "config/environment.h"

namespace accelerate::detail {

/// Facts about the nodes that a transport may need when it starts.
struct TransportSettings {
  bool is_single_node = true;
  /// Number of this rank's node, which only its ranks have.
  int node = 0;
  /// Number of ranks on that node.
  int local_size = 1;
  /// Address of rank 0's node.
  std::string main_address;
  Environment environment;
};

/// A row of the table of transports.
struct TransportRow {
  std::string_view name;
  bool (*is_available)();
  std::shared_ptr<Transport> (*make)(const TransportSettings& settings);
};

/// All transports of this build, the best first.
std::span<const TransportRow> transports();

/// Returns the row called `name`, or the first available one if unset. Throws
/// ConfigError listing the names if that transport is unknown or unavailable.
const TransportRow& choose_transport(const std::optional<std::string>& name);

}  // namespace accelerate::detail
