#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <accelerate/world.h>

#include "comm/monitoring/circular_wait.h"

namespace accelerate::detail {

class WorldBoard;

/// Collectives on strings through the store, without a process group: for work
/// beside training, possibly on its own thread. One object per rank, used by
/// one thread at a time; all ranks make the same calls in the same order. With
/// one rank, nothing is sent.
///
/// Throws DistributedError naming a rank that does not arrive within the
/// world's timeout, or if the store is gone or holds data that no rank wrote.
/// `what` names the call in errors.
class StoreGroup {
 public:
  /// `ranks` are world ranks; the first is the leader. No other group may have
  /// this `name`.
  StoreGroup(const World& world, std::string name, std::vector<int> ranks);

  [[nodiscard]] bool is_leader() const { return place_ == 0; }
  [[nodiscard]] const std::vector<int>& ranks() const { return ranks_; }

  /// Makes a rank that waits for others call `check` about twice a second. If
  /// `check` throws DistributedError, and the awaited key has still not
  /// arrived, the wait ends with that error.
  void while_waiting(std::function<void(const std::string& what)> check) {
    check_ = std::move(check);
  }
  /// Makes waits that cannot end, because the awaited rank waits for this one
  /// in a collective, throw DistributedError with both calls within about a
  /// second. Only for groups in which ranks write from the threads that made
  /// their worlds.
  void end_circular_waits() { ends_circular_waits_ = true; }

  /// Makes current and later waiting calls throw DistributedError soon. Meant
  /// for a rank that fails and must not wait for others. Thread-safe.
  void cancel() { is_cancelled_ = true; }

  /// Returns every rank's `value` on the leader, in the order of `ranks`; an
  /// empty list elsewhere.
  std::vector<std::string> gather(
      const std::string& value,
      const std::string& what);
  /// Returns the leader's `value` on all ranks.
  std::string broadcast(const std::string& value, const std::string& what);
  /// Returns every rank's `value` on all ranks.
  std::vector<std::string> all_gather(
      const std::string& value,
      const std::string& what);

 private:
  std::string
  wait_for(const std::string& key, int world_rank, const std::string& what);
  void forget(const std::string& key);
  /// Throws if this rank waits in vain for `key`, which `awaited` writes.
  void look_at_others(
      const std::string& key,
      int awaited,
      const std::string& what,
      std::vector<WaitingCall>& waits);
  /// Throws if `awaited` and this rank wait for each other, which takes two
  /// looks: `waits` keeps what the previous one found.
  void require_no_circle(
      int awaited,
      const std::string& what,
      std::vector<WaitingCall>& waits);

  std::shared_ptr<WorldBoard> board_;
  std::string prefix_;
  c10::intrusive_ptr<c10d::Store> store_;
  std::chrono::milliseconds timeout_;
  std::vector<int> ranks_;
  std::size_t place_ = 0;
  std::uint64_t count_ = 0;
  std::function<void(const std::string& what)> check_;
  std::atomic<bool> is_cancelled_{false};
  bool ends_circular_waits_ = false;
  std::thread::id program_thread_;
  int rank_ = 0;
  /// Keys of the leader's broadcasts that some ranks may not have read yet.
  std::vector<std::string> unread_;
};

}  // namespace accelerate::detail
