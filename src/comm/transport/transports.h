#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "comm/transport/transport.h"
#include "config/environment.h"

namespace accelerate::detail {

/// What a transport may want to know about the machines before it starts.
struct TransportSettings {
  bool is_single_node = true;
  /// Where rank 0 is.
  std::string main_address;
  Environment environment;
};

/// A row of the table of transports.
struct TransportRow {
  std::string_view name;
  bool (*is_available)();
  std::shared_ptr<Transport> (*make)(const TransportSettings& settings);
};

/// All that this build knows, the best first.
ACCELERATE_API std::span<const TransportRow> transports();

/// The row called `name`, or the first available one. Throws ConfigError
/// listing the names if there is none of that name, or it is not available.
ACCELERATE_API const TransportRow& choose_transport(
    const std::optional<std::string>& name);

}  // namespace accelerate::detail
