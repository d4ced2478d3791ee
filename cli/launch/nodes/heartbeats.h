#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "cli/store/store_client.h"

namespace accelerate::cli {

/// A launcher without a heartbeat for this long is considered gone.
inline constexpr std::chrono::seconds kHeartbeatTimeout{15};
inline constexpr std::chrono::seconds kHeartbeatInterval{1};

/// The key of a machine's heartbeat, whose value changes with each beat.
std::string heartbeat_key(int machine);

/// The last heartbeat of each machine except the first.
class Heartbeats {
 public:
  explicit Heartbeats(int num_machines)
      : last_(static_cast<std::size_t>(num_machines)) {}

  /// Reads a machine's heartbeat; true if it has been silent for too long after
  /// its first one.
  bool is_silent(StoreClient& client, int machine);
  /// The first machine that has been silent for too long, if any.
  std::optional<int> silent(StoreClient& client);

 private:
  struct Heard {
    std::string text;
    std::chrono::steady_clock::time_point at;
  };
  std::vector<Heard> last_;
};

}  // namespace accelerate::cli
