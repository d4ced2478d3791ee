#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "comm/transport/shared_memory/memory/fabric.h"
#include "comm/transport/shared_memory/memory/peers.h"
#include "comm/transport/shared_memory/operations/operation.h"
#include "comm/transport/shared_memory/progress/operation_queue.h"

namespace accelerate::detail {

/// How often a waiting thread polls before it sleeps. Polling occupies a
/// processor; waking up from sleep takes some ten microseconds. So it spins for
/// about that long if this has paid off recently, and hardly at all if it has
/// not or if others need the processor. Used by one thread at a time.
class Patience {
 public:
  /// `may_spin`: there are enough processors for all threads that run while
  /// this one polls.
  explicit Patience(bool may_spin) : most_(may_spin ? kMost : kLeast) {}

  [[nodiscard]] int num_looks() const { return num_looks_; }
  /// The minimum, for threads that nothing waits for.
  static constexpr int least() { return kLeast; }

  /// Called after a sleep of `time` that followed polling in vain.
  void slept(std::chrono::nanoseconds time) {
    num_looks_ = time < kWorthwhile ? num_looks_ * 2 : num_looks_ * 3 / 4;
    num_looks_ = std::clamp(num_looks_, kLeast, most_);
  }

 private:
  // About 100 microseconds, and about one.
  static constexpr int kMost = 2000;
  static constexpr int kLeast = 20;
  static constexpr std::chrono::microseconds kWorthwhile{100};

  int most_;
  int num_looks_ = most_;
};

struct ProgressEngineOptions {
  /// How long an operation waits for a silent rank.
  std::chrono::milliseconds timeout{};
  /// The ranks' numbers in the world, for error messages.
  std::vector<int> world_ranks;
  /// The machine has enough processors for all threads that run while a rank
  /// waits.
  bool may_spin = false;
};

/// Decides which thread drives the operations of one rank on one connection
/// (OperationQueue), and which threads sleep. There is no automatic progress: a
/// thread that waits for an operation advances all of them, and after
/// run_in_background() the engine's worker thread does while no thread waits.
/// One thread at a time drives; a sleeping thread does not, so others need not
/// wake it to begin an operation or to wait. Neither a call that is waited for
/// at once nor a message that finds room costs a thread switch. Thread-safe.
///
/// A waiting thread spins for some microseconds (Patience) and then sleeps.
/// Every 10 ms, a sleeper checks that the ranks it awaits are still alive. The
/// worker sleeps through events that can wait until a thread waits for them
/// (Attention). A failure ends the connection: all operations fail with it, and
/// the other ranks learn the reason. In a forked process, the copy of the
/// engine does nothing: the connection is the parent's.
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

  /// Enter this rank in two steps. watch_peers() begins to watch the other
  /// ranks' processes; it is called when all ranks have mapped the segment and
  /// called announce().
  void announce();
  void watch_peers();

  /// Queues a collective or a Message. All ranks queue the same collectives in
  /// the same order. Throws std::runtime_error if the connection has failed.
  void begin(const std::shared_ptr<Operation>& operation);
  /// Returns when `operation` has finished; throws std::runtime_error if it
  /// failed. `timeout` overrides the connection's, unless 0.
  void wait(
      Operation& operation,
      std::chrono::milliseconds timeout = std::chrono::milliseconds::zero());
  /// Advances as far as possible without waiting, and returns whether
  /// `operation` has finished.
  [[nodiscard]] bool test(Operation& operation);
  /// Lets begun operations proceed while no thread waits.
  void run_in_background();
  /// Calls `listener` when `operation` finishes, on the thread that finishes
  /// it; immediately if it already has.
  void on_finish(Operation& operation, std::function<void()> listener);

  /// Ends the connection. Ranks that wait for this one fail.
  void close();
  /// Ends the connection for an external reason, with which all operations and
  /// the other ranks fail.
  void end(const std::string& reason);
  /// False in a process that was forked from the one that connected. The engine
  /// must not be destroyed there: its threads do not exist, but may have held
  /// locks.
  [[nodiscard]] bool is_own_process() const;

 private:
  using Clock = Operation::Clock;

  // Advances until `until` has finished.
  void drive(const Operation& until);
  // Advances until all have finished, another thread wants to drive, or nothing
  // moves.
  void drive_in_background();
  void take_notice();
  // Sleeps until a rank or a thread of this process rings, and checks the
  // ranks. Does not drive while asleep.
  void sleep();
  void sleep_in_background(std::unique_lock<std::mutex>& lock);
  // Advances as far as possible without waiting, if no thread drives.
  void advance_once(std::unique_lock<std::mutex>& lock);
  // Lets another thread drive, and leaves unfinished operations to the worker.
  void stop_driving(std::unique_lock<std::mutex>& lock);
  bool leave_to_worker(std::unique_lock<std::mutex>& lock);
  void run_worker();

  Fabric fabric_;
  std::chrono::milliseconds timeout_;
  Peers peers_;
  std::int64_t process_;
  Monitor monitor_;
  OperationQueue operations_;
  Patience patience_;  // used only by the driving thread

  // Guarded by the monitor's mutex.
  bool is_driven_ = false;
  bool has_waiter_ = false;  // drives, or sleeps until there is something to do
  bool is_worker_asleep_ = false;
  bool wants_worker_ = false;
  std::thread worker_;

  std::atomic<bool> is_closed_{false};  // written with the mutex
};

}  // namespace accelerate::detail
