#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comm/transport/shared_memory/memory/fabric.h"

namespace accelerate::detail {

/// Something that a rank does together with others, in pieces: a thread that
/// waits for any operation of a connection advances all of them.
class Operation {
 public:
  using Clock = std::chrono::steady_clock;

  Operation() = default;
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;
  virtual ~Operation() = default;

  /// Advances as far as possible without waiting. Returns whether it made
  /// progress. Throws DistributedError if the ranks disagree.
  virtual bool advance(Fabric& fabric) = 0;
  /// Whether it is a Message rather than a collective.
  [[nodiscard]] virtual bool is_message() const { return false; }
  /// True once advance() has nothing left to do.
  [[nodiscard]] virtual bool is_complete() const = 0;
  /// Adds the connection's ranks that advance() waits for.
  virtual void list_awaited(const Fabric& fabric, std::vector<int>& ranks)
      const = 0;
  /// Formats the operation, as in "all_reduce of 4096 bytes".
  [[nodiscard]] virtual std::string describe() const = 0;

  /// Keeps the owner of the memory that the operation uses.
  void keep(std::shared_ptr<const void> owner) { owner_ = std::move(owner); }

  /// Finished operations have either succeeded, or failed for the reason in
  /// failure().
  [[nodiscard]] bool is_finished() const { return state_.load() != kPending; }
  [[nodiscard]] bool has_failed() const { return state_.load() == kFailed; }
  [[nodiscard]] const std::string& failure() const { return failure_; }

  /// Sets the time at which waiting ends with an error; there is none before.
  void set_deadline(Clock::time_point time) {
    deadline_.store(time.time_since_epoch().count());
  }
  [[nodiscard]] bool is_late(Clock::time_point now) const {
    return now.time_since_epoch().count() > deadline_.load();
  }
  [[nodiscard]] bool has_deadline() const { return deadline_.load() != kNever; }

 private:
  friend class OperationQueue;
  static constexpr int kPending = 0;
  static constexpr int kSucceeded = 1;
  static constexpr int kFailed = 2;
  static constexpr Clock::rep kNever = Clock::duration::max().count();

  std::shared_ptr<const void> owner_;
  std::atomic<int> state_{kPending};
  std::atomic<Clock::rep> deadline_{kNever};
  std::string failure_;             // written before state_
  std::function<void()> listener_;  // guarded by the monitor's mutex
};

}  // namespace accelerate::detail
