#include "comm/transport/shared_memory/shared_memory_transport.h"

#include <string_view>
#include <utility>

#include <ATen/Parallel.h>

#include "base/machine/processors.h"
#include "base/text/text.h"
#include "comm/transport/handshake.h"
#include "comm/transport/shared_memory/progress/progress_engine.h"
#include "comm/transport/shared_memory/shared_memory_connection.h"

namespace accelerate::detail {

namespace {

// Maps the group's segment, which rank 0 makes. Returns nothing, with the
// reason in `complaint`, if that fails.
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
      handshake.publish("ticket", format("{} {}", node, made.ticket()));
      return made;
    }
    const std::string told = handshake.ask("ticket", 0);
    if (told.empty()) return std::nullopt;
    const std::size_t space = told.find(' ');
    // Different nodes of a launcher can be one machine.
    if (told.substr(0, space) != std::to_string(node)) {
      throw SegmentError(
          "[comm] the ranks cannot share memory: they are on different nodes");
    }
    return SharedSegment::open(told.substr(space + 1));
  } catch (const SegmentError& error) {
    complaint = error.what();
    if (request.rank == 0) handshake.publish("ticket", "");
    return std::nullopt;
  }
}

}  // namespace

SharedMemoryTransport::SharedMemoryTransport(const TransportSettings& settings)
    : node_(settings.node),
      num_local_ranks_(settings.local_size),
      num_processors_(usable_processors()) {}

const TransportFacts& SharedMemoryTransport::facts() const {
  return shared_memory_facts();
}

std::shared_ptr<Connection> SharedMemoryTransport::connect(
    const ConnectRequest& request) {
  return share(request);
}

std::shared_ptr<SharedMemoryConnection> SharedMemoryTransport::share(
    const ConnectRequest& request) const {
  Handshake handshake(request, "shared_memory");
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
            .timeout = request.timeout,
            .world_ranks = request.world_ranks,
            .may_spin = may_spin()});
    engine->announce();
  }
  for (const std::string& each : handshake.exchange("mapped", complaint)) {
    if (!each.empty()) throw CannotShareMemory(each);
  }
  engine->segment().close_ticket();
  engine->watch_peers();
  return std::make_shared<SharedMemoryConnection>(std::move(engine));
}

// Looks for the mark, since autograd loses the exception's type.
std::optional<std::string> SharedMemoryTransport::describe_failure(
    const std::exception& error) const {
  const std::string line = first_line_of(error);
  const std::size_t mark = line.find(kSharedMemoryMark);
  if (mark == std::string::npos) return std::nullopt;
  return line.substr(mark + std::string_view(kSharedMemoryMark).size());
}

// While one thread of this rank polls, all threads of the machine's other ranks
// may be computing.
bool SharedMemoryTransport::may_spin() const {
  return 1 + (num_local_ranks_ - 1) * at::get_num_threads() <= num_processors_;
}

std::shared_ptr<Transport> make_shared_memory_transport(
    const TransportSettings& settings) {
  return std::make_shared<SharedMemoryTransport>(settings);
}

}  // namespace accelerate::detail
