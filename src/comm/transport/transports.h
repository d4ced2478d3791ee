#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include <c10/core/Device.h>

#include "comm/transport/transport.h"
#include "config/environment.h"

namespace accelerate::detail {

/// Whether a rank, by its number in the world, has ended. May be called on any
/// thread.
using RankIsGone = std::function<bool(int rank)>;

/// Facts about the nodes that a transport may need when it starts.
struct TransportSettings {
  bool is_single_node = true;
  /// Number of this rank's node, which only its ranks have.
  int node = 0;
  /// Number of ranks on that node.
  int local_size = 1;
  /// Address of rank 0's node.
  std::string main_address = {};
  /// The device of this rank.
  std::optional<c10::Device> device = std::nullopt;
  Environment environment = {};
  /// Returns a function that detects ranks that have ended, or null while the
  /// world cannot know. Called while a group of the world is used.
  std::function<RankIsGone()> watch_ranks = nullptr;
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
