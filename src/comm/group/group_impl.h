#pragma once

#include <atomic>
#include <chrono>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <accelerate/detail/step_parts.h>
#include <accelerate/world.h>

#include "comm/monitoring/noted_call.h"
#include "comm/monitoring/world_board.h"
#include "comm/transport/transport.h"
#include "comm/transport/unfinished_work.h"
#include "config/settings.h"

namespace accelerate::detail {

/// State that the groups of one World share.
struct WorldCore {
  Store store = Store::in_memory();
  /// Null in a world of one rank.
  std::shared_ptr<Transport> transport;
  std::chrono::milliseconds timeout{};
  bool debug = false;
  Logger logger;
  /// The launcher's settings, read by everything that uses this world.
  Settings settings = {};
  /// The thread that made the world, from which the program calls it.
  std::thread::id program_thread = std::this_thread::get_id();
  /// The slot through which profilers and the board's monitor listen.
  std::shared_ptr<StepSlot> steps = std::make_shared<StepSlot>();
  /// Null in a world of one rank without a launcher, and if memory cannot be
  /// shared.
  std::shared_ptr<WorldBoard> board = nullptr;
  /// How long a rank waits for others before a report; 0: never.
  std::chrono::milliseconds hang_threshold{};

  [[nodiscard]] BoardWriter* notes() const {
    return board == nullptr ? nullptr : &board->writer();
  }
};

struct GroupImpl {
  std::string name = "self";
  int rank = 0;
  int size = 1;
  std::vector<int> world_ranks{0};
  std::shared_ptr<WorldCore> world;

  /// The store with this group's keys; null for a group of one.
  c10::intrusive_ptr<c10d::Store> store;
  /// Exchanges that nothing waits for anymore.
  UnfinishedWorks unfinished;

  /// Takes any dense tensor; null for a group of one.
  std::shared_ptr<Connection> connection;
  /// The connection as hooks of buckets take it; null for a group of one.
  c10::intrusive_ptr<c10d::ProcessGroup> process_group;

  /// Number of the current collective, counted from 1, equal on all ranks.
  std::atomic<std::uint64_t> sequence{0};
  /// Number of exchanges begun by all ranks alike.
  std::atomic<std::uint64_t> num_exchanges{0};

  /// Notes this rank's calls on the board; null without one.
  std::shared_ptr<NotedCalls> calls;

  GroupImpl() = default;
  GroupImpl(const GroupImpl&) = delete;
  GroupImpl& operator=(const GroupImpl&) = delete;
  ~GroupImpl();

  [[nodiscard]] int peer_in_world(int group_rank) const {
    return world_ranks[static_cast<std::size_t>(group_rank)];
  }
};

/// Makes the process group of a connected group; if the world has a board, its
/// calls are noted there.
void note_calls(GroupImpl& group);

/// Connects `world_ranks`, where this process is number `rank`.
std::shared_ptr<GroupImpl> make_group(
    std::shared_ptr<WorldCore> world,
    std::string name,
    int rank,
    std::vector<int> world_ranks);

/// Whether `error` is a failure of the group's transport or store, which other
/// ranks may have caused.
bool is_communication_failure(
    const GroupImpl& group,
    const std::exception& error);

/// Throws a DistributedError for a transport's exception, naming the operation,
/// its number if it has one, and the peers that are gone or silent. Reports to
/// the other ranks first, so that their errors do not name this one. Failing
/// ranks find each other's reports by `sequence`, the group's number.
[[noreturn]] void fail_collective(
    const GroupImpl& group,
    const char* operation,
    std::uint64_t sequence,
    const std::exception& error,
    std::optional<std::uint64_t> number = std::nullopt);

/// Throws a DistributedError if results of `operation` that the host has read
/// from a device may be undefined, since the group has failed.
void require_intact(const Group& group, const char* operation);
/// Throws a DistributedError if what the host has read from a device may be
/// undefined, since a group of the world has failed.
void require_intact(const World& world);

/// Compares what the ranks are about to do (debug mode). Throws
/// DistributedError with each rank's version if they differ.
void check_agreement(
    const GroupImpl& group,
    const char* operation,
    const std::string& detail);

}  // namespace accelerate::detail
