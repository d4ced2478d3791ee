#include "comm/transport/shared_memory/shared_memory_transport.h"

#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <accelerate/error.h>

#include "base/text.h"
#include "comm/rendezvous/store.h"
#include "comm/transport/shared_memory/progress_engine.h"
#include "comm/transport/shared_memory/shared_memory_connection.h"

namespace accelerate::detail {

namespace {

// What the ranks tell each other while they connect.
class Handshake {
 public:
  explicit Handshake(const ConnectRequest& request)
      : request_(request),
        store_(c10::make_intrusive<c10d::PrefixStore>(
            "shared_memory",
            request.store)) {}

  void tell(const std::string& key, const std::string& value) {
    store_->set(key, value);
  }

  std::string ask(const std::string& key, int rank) {
    if (wait_for_key(*store_, key, request_.timeout))
      return store_->get_to_str(key);
    throw DistributedError(format(
        "[comm] rank {} is gone or stuck while the ranks of group \"{}\" "
        "connect",
        request_.world_ranks[static_cast<std::size_t>(rank)],
        request_.name));
  }

  // Empty if all ranks have told an empty `key`; else the first other value.
  std::string first_complaint(const std::string& key) {
    for (std::size_t peer = 0; peer < request_.world_ranks.size(); ++peer) {
      std::string complaint =
          ask(format("{}/{}", key, peer), static_cast<int>(peer));
      if (!complaint.empty()) return complaint;
    }
    return {};
  }

 private:
  const ConnectRequest& request_;
  c10::intrusive_ptr<c10d::Store> store_;
};

// The segment of the group: rank 0 makes it. Nothing, with the reason in
// `complaint`, where that fails.
std::optional<SharedSegment> map_segment(
    Handshake& handshake,
    const ConnectRequest& request,
    int node,
    std::string& complaint) {
  const auto size = static_cast<int>(request.world_ranks.size());
  try {
    if (request.rank == 0) {
      SharedSegment made =
          SharedSegment::create(SegmentLayout(size).total_bytes());
      handshake.tell("ticket", format("{} {}", node, made.ticket()));
      return made;
    }
    const std::string told = handshake.ask("ticket", 0);
    if (told.empty()) return std::nullopt;
    const std::size_t space = told.find(' ');
    // What the launcher calls different nodes may be one machine.
    if (told.substr(0, space) != std::to_string(node)) {
      throw SegmentError(
          "[comm] the ranks cannot share memory: they are on different nodes");
    }
    return SharedSegment::open(told.substr(space + 1));
  } catch (const SegmentError& error) {
    complaint = error.what();
    if (request.rank == 0) handshake.tell("ticket", "");
    return std::nullopt;
  }
}

class SharedMemoryTransport final : public Transport {
 public:
  explicit SharedMemoryTransport(int node) : node_(node) {}

  [[nodiscard]] const TransportFacts& facts() const override {
    return shared_memory_facts();
  }

  [[nodiscard]] std::shared_ptr<Connection> connect(
      const ConnectRequest& request) override {
    Handshake handshake(request);
    const auto size = static_cast<int>(request.world_ranks.size());
    std::string complaint;
    std::optional<SharedSegment> segment =
        map_segment(handshake, request, node_, complaint);
    std::shared_ptr<ProgressEngine> engine;
    if (segment) {
      engine = std::make_shared<ProgressEngine>(
          *std::move(segment),
          request.rank,
          size,
          ProgressEngineOptions{
              .timeout = request.timeout, .world_ranks = request.world_ranks});
      engine->announce();
    }
    handshake.tell(format("mapped/{}", request.rank), complaint);
    complaint = handshake.first_complaint("mapped");
    if (!complaint.empty()) throw CannotShareMemory(complaint);
    engine->segment().close_ticket();
    engine->watch_peers();
    return make_shared_memory_connection(std::move(engine));
  }

  // By the mark, since inside autograd an exception has no type.
  [[nodiscard]] std::optional<std::string> describe_failure(
      const std::exception& error) const override {
    const std::string line = first_line_of(error);
    const std::size_t mark = line.find(kSharedMemoryMark);
    if (mark == std::string::npos) return std::nullopt;
    return line.substr(mark + std::string_view(kSharedMemoryMark).size());
  }

 private:
  int node_;
};

}  // namespace

std::shared_ptr<Transport> make_shared_memory_transport(
    const TransportSettings& settings) {
  return std::make_shared<SharedMemoryTransport>(settings.node);
}

}  // namespace accelerate::detail
