#include "comm/transport/automatic_transport.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "base/machine/shared_segment.h"
#include "base/text/text.h"
#include "comm/transport/gloo/gloo_transport.h"
#include "comm/transport/handshake.h"
#include "comm/transport/hierarchy/hierarchical_connection.h"
#include "comm/transport/shared_memory/shared_memory_transport.h"

namespace accelerate::detail {

namespace {

// Processes of the same user, in the same PID and user namespaces, can open
// another process's memory under /proc.
std::string namespaces() {
  std::string text = std::to_string(::geteuid());
  for (const char* const file : {"/proc/self/ns/pid", "/proc/self/ns/user"}) {
    std::array<char, 64> name{};
    const ssize_t length = ::readlink(file, name.data(), name.size() - 1);
    text += format(" {}", length > 0 ? name.data() : "?");
  }
  return text;
}

class AutomaticTransport final : public Transport {
 public:
  explicit AutomaticTransport(TransportSettings settings)
      : settings_(std::move(settings)), memory_(settings_) {}

  [[nodiscard]] const TransportFacts& facts() const override {
    return memory_.facts();
  }

  [[nodiscard]] std::shared_ptr<Connection> connect(
      const ConnectRequest& request) override {
    Handshake handshake(request, "islands");
    auto keys = handshake.exchange(
        "place",
        format(
            "{} node {}\n{}",
            SharedSegment::machine(),
            settings_.node,
            namespaces()));
    std::vector<std::string> machines;
    for (const std::string& key : keys)
      machines.push_back(key.substr(0, key.find('\n')));
    const Islands wanted(keys);
    const std::shared_ptr<SharedMemoryConnection> inside =
        connect_island(request, wanted);
    const auto are_connected =
        handshake.exchange("is_connected", inside ? "1" : "0");
    for (std::size_t rank = 0; rank < keys.size(); ++rank) {
      if (are_connected[rank] == "0") keys[rank] += format(" rank {}", rank);
    }
    const Islands islands(keys);
    warn_if_divided(request, islands, machines);
    if (islands.count() == 1) return inside;
    // Created only when needed, since it opens sockets.
    if (!network_) network_ = make_gloo_transport(settings_);
    std::shared_ptr<Connection> network = network_->connect(request);
    if (islands.count() == keys.size()) return network;
    return make_hierarchical_connection(
        inside, std::move(network), islands, request.world_ranks);
  }

  [[nodiscard]] std::optional<std::string> describe_failure(
      const std::exception& error) const override {
    auto text = memory_.describe_failure(error);
    if (!text && network_) text = network_->describe_failure(error);
    return text;
  }

 private:
  // Returns null if this rank is alone, or if its island cannot share memory
  // after all.
  std::shared_ptr<SharedMemoryConnection> connect_island(
      const ConnectRequest& request,
      const Islands& islands) {
    const std::size_t island = islands.island_of(request.rank);
    const std::vector<int>& members = islands.members(island);
    if (members.size() == 1) return nullptr;
    ConnectRequest own = request;
    own.store = c10::make_intrusive<c10d::PrefixStore>(
        format("island/{}", island), request.store);
    own.rank = islands.local_rank(request.rank);
    own.world_ranks.clear();
    for (const int member : members) {
      own.world_ranks.push_back(
          request.world_ranks[static_cast<std::size_t>(member)]);
    }
    // Lets a rank that waits for other islands fail first, since it knows the
    // reason.
    if (islands.count() > 1) own.timeout += std::chrono::seconds(1);
    try {
      return memory_.share(own);
    } catch (const CannotShareMemory& error) {
      reason_ = error.what();
      return nullptr;
    }
  }

  void warn_if_divided(
      const ConnectRequest& request,
      const Islands& islands,
      const std::vector<std::string>& machines) {
    const auto own = static_cast<std::size_t>(request.rank);
    bool is_divided = false, is_first = true;
    for (std::size_t rank = 0; rank < machines.size(); ++rank) {
      if (machines[rank] != machines[own]) continue;
      is_first = is_first && rank >= own;
      is_divided = is_divided ||
          islands.island_of(static_cast<int>(rank)) !=
              islands.island_of(request.rank);
    }
    if (!is_divided || std::exchange(has_warned_, true) || !is_first) return;
    request.logger.log(
        LogLevel::warning,
        "comm",
        format(
            "group \"{}\": ranks on one machine communicate through Gloo: {}",
            request.name,
            reason_.empty() ? "[comm] they cannot share memory: they are in "
                              "different containers, or run as different users"
                            : reason_));
  }

  TransportSettings settings_;
  SharedMemoryTransport memory_;
  std::shared_ptr<Transport> network_;
  std::string reason_;
  bool has_warned_ = false;
};

}  // namespace

std::shared_ptr<Transport> make_automatic_transport(
    const TransportSettings& settings) {
  return std::make_shared<AutomaticTransport>(settings);
}

}  // namespace accelerate::detail
