#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "comm/transport/shared_memory/memory/fabric.h"
#include "comm/transport/shared_memory/memory/peers.h"
#include "comm/transport/shared_memory/operations/messages.h"
#include "comm/transport/shared_memory/operations/operation.h"

namespace accelerate::detail {

/// The interval at which a sleeper checks that the ranks it awaits are alive.
inline constexpr std::chrono::milliseconds kPeerCheckInterval{10};

/// The monitor on which threads of this process that use one connection wait
/// for each other.
struct Monitor {
  std::mutex mutex;
  std::condition_variable changed;
  /// Threads that wait while another one drives or sleeps.
  std::atomic<int> num_waiting{0};

  /// Waits for a change as one of num_waiting.
  void wait(std::unique_lock<std::mutex>& lock) {
    num_waiting.fetch_add(1);
    changed.wait(lock);
    num_waiting.fetch_sub(1);
  }
};

/// The operations that a rank has begun on one connection, and the failure that
/// ends them all. One thread at a time drives: it advances the operations, or
/// has them fail if a rank that they await is gone or late. Other threads leave
/// requests to it.
class OperationQueue {
 public:
  /// All must outlive this object.
  OperationQueue(Fabric& fabric, const Peers& peers, Monitor& monitor)
      : fabric_(fabric),
        peers_(peers),
        monitor_(monitor),
        mailbox_(fabric.size()) {}

  // Functions for any thread that holds the monitor's mutex.

  /// Throws std::runtime_error if the connection has failed.
  void check() const;
  /// Leaves an operation to the driving thread.
  void post(const std::shared_ptr<Operation>& operation);
  /// Asks the driving thread to fail with this reason.
  void request_end(const std::string& reason);
  /// Calls `listener` when an unfinished operation finishes, on the thread that
  /// finishes it.
  void listen(Operation& operation, std::function<void()> listener);

  // Functions for any thread.

  [[nodiscard]] bool has_failed() const { return has_failed_.load(); }
  [[nodiscard]] bool has_requests() const {
    return has_inbox_.load() || is_ending_.load();
  }

  // Functions for the driving thread, without the mutex.

  /// Adds a collective or a message; also for a thread that holds the mutex
  /// while none drives.
  void add(const std::shared_ptr<Operation>& operation);
  /// Advances operations and requests as far as possible without waiting.
  /// Returns whether anything moved.
  bool advance();
  /// Fails if end() was requested.
  void take_ending();
  /// Makes all operations fail, and the other ranks with the same reason.
  void fail(const std::string& reason);
  /// Fails if a rank that an operation awaits is gone or late. Looks at most
  /// every kPeerCheckInterval, unless a rank has left.
  void check_peers();
  /// Whether there is nothing to advance.
  [[nodiscard]] bool is_idle() const;
  /// The events that must wake the worker while no thread waits.
  [[nodiscard]] Attention attention() const;

 private:
  using Clock = Operation::Clock;
  using Operations = std::vector<std::shared_ptr<Operation>>;

  void take_inbox();
  void finish(const Operations& operations);

  Fabric& fabric_;
  const Peers& peers_;
  Monitor& monitor_;

  // Used only by the driving thread.
  std::deque<std::shared_ptr<Operation>> collectives_;
  Mailbox mailbox_;
  Operations finished_;
  Clock::time_point last_check_ = Clock::now();

  // Guarded by the mutex.
  Operations inbox_;
  std::string failure_;
  std::string ending_;  // request_end()'s argument

  std::atomic<bool> has_inbox_{false};
  std::atomic<bool> has_failed_{false};
  std::atomic<bool> is_ending_{false};
  // Unfinished operations with listeners.
  std::atomic<int> num_listeners_{0};
};

}  // namespace accelerate::detail
