#include "cli/launch/nodes/heartbeats.h"

#include <utility>

#include "base/text/text.h"

namespace accelerate::cli {

std::string heartbeat_key(int machine) {
  return detail::format("accelerate-cpp/beat/{}", machine);
}

bool Heartbeats::is_silent(StoreClient& client, int machine) {
  const auto now = std::chrono::steady_clock::now();
  Heard& last = last_[static_cast<std::size_t>(machine)];
  std::string heartbeat = client.get(heartbeat_key(machine));
  if (heartbeat != last.text || last.text.empty()) {
    last = {std::move(heartbeat), now};
    return false;
  }
  return now - last.at > kHeartbeatTimeout;
}

std::optional<int> Heartbeats::silent(StoreClient& client) {
  const auto num_machines = static_cast<int>(last_.size());
  for (int machine = 1; machine < num_machines; ++machine) {
    if (is_silent(client, machine)) return machine;
  }
  return std::nullopt;
}

}  // namespace accelerate::cli
