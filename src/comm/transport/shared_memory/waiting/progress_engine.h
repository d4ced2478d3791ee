#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "comm/transport/shared_memory/memory/fabric.h"
#include "comm/transport/shared_memory/memory/peers.h"
#include "comm/transport/shared_memory/operations/messages.h"
#include "comm/transport/shared_memory/operations/operation.h"
#include "comm/transport/shared_memory/waiting/patience.h"

namespace accelerate::detail {

struct DisagreementError;

struct ProgressEngineOptions {
  /// How long an operation waits for a silent rank.
  std::chrono::milliseconds timeout{};
  /// The ranks' numbers in the world, for messages.
  std::vector<int> world_ranks;
  /// The machine has processors for all that run while a rank waits.
  bool may_spin = false;
};

/// Advances the operations of one rank on one connection. Nothing happens by
/// itself: a thread that waits for an operation advances all of them, and after
/// run_in_background() a thread of the engine's own does while nobody waits. So
/// a call that is waited for at once costs no change of threads. Any thread may
/// call.
///
/// Waiting spins for some microseconds (Patience) and then sleeps. A sleeper looks every 10 ms whether the ranks that it awaits are
/// still there. A failure ends the connection: all operations fail with it, and
/// the other ranks learn the reason. A process that was forked from this one has
/// a copy of the engine that does nothing: the connection is its parent's.
class ProgressEngine {
 public:
  ProgressEngine(
      SharedSegment segment,
      int rank,
      int size,
      ProgressEngineOptions options);
  ProgressEngine(const ProgressEngine&) = delete;
  ProgressEngine& operator=(const ProgressEngine&) = delete;
  ~ProgressEngine();

  [[nodiscard]] int rank() const { return fabric_.rank(); }
  [[nodiscard]] int size() const { return fabric_.size(); }
  SharedSegment& segment() { return fabric_.segment(); }
  SharedBlocks& blocks() { return fabric_.blocks(); }

  /// Enters this rank: other ranks' processes are watched from here on. Called
  /// when all ranks have mapped the segment and called announce().
  void announce();
  void watch_peers();

  /// Queues a collective or a Message. All ranks queue the same collectives in
  /// the same order. Throws std::runtime_error if the connection has failed.
  void begin(const std::shared_ptr<Operation>& operation);
  /// Returns when `operation` has finished; throws std::runtime_error if it
  /// failed. `timeout`: instead of the connection's.
  void wait(
      Operation& operation,
      std::chrono::milliseconds timeout = std::chrono::milliseconds::zero());
  /// Lets the operations that were begun proceed while nobody waits.
  void run_in_background();
  /// Calls `listener` when `operation` has finished, at once if it has, on the
  /// thread that finishes it.
  void on_finish(Operation& operation, std::function<void()> listener);

  /// Ends the connection. Ranks that wait for this one fail.
  void close();
  /// Ends it for a reason from outside: all operations, and the other ranks, fail
  /// with it.
  void end(const std::string& reason);
  /// False in a process that was forked from the one that connected. The engine
  /// must not be destroyed there: its threads do not exist, whatever they held.
  [[nodiscard]] bool is_own_process() const;

 private:
  using Clock = Operation::Clock;

  // Advances until `until` has finished; or, without one, until all have, or
  // another thread wants to.
  void drive(const Operation* until);
  bool advance_all();
  void take_inbox();
  void finish(const std::vector<std::shared_ptr<Operation>>& operations);
  // Sleeps until a rank or a thread of this process rings, and checks the ranks.
  void sleep();
  void check_peers();
  [[nodiscard]] std::string describe_late(
      const Operation& operation,
      const std::vector<int>& awaited) const;
  [[nodiscard]] std::string describe_disagreement(
      const DisagreementError& error) const;
  void fail(const std::string& reason);
  void take_ending();
  // Lets another thread drive.
  void stop_driving(std::unique_lock<std::mutex>& lock);
  void run_worker();
  [[nodiscard]] bool is_idle() const;
  void post(const std::shared_ptr<Operation>& operation);
  Fabric fabric_;
  ProgressEngineOptions options_;
  Peers peers_;
  std::int64_t process_;

  // Used by the thread that drives.
  Patience patience_;
  std::deque<std::shared_ptr<Operation>> collectives_;
  Mailbox mailbox_;
  std::vector<std::shared_ptr<Operation>> finished_;

  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by the mutex.
  std::vector<std::shared_ptr<Operation>>
      inbox_;  // while another thread drives
  bool is_driven_ = false;
  bool is_closed_ = false;
  bool wants_worker_ = false;
  std::string failure_;
  std::string ending_;  // what end() was given
  std::thread worker_;

  std::atomic<bool> has_inbox_{false};
  std::atomic<bool> has_failed_{false};
  std::atomic<bool> is_closing_{false};
  std::atomic<bool> is_ending_{false};
  // Threads that wait while another one drives.
  std::atomic<int> num_waiting_{0};
};

}  // namespace accelerate::detail
