#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <accelerate/world.h>

namespace accelerate::detail {

/// Tells a rank that waits in a call whether the others will ever make that
/// call. A thread per rank publishes the rank's position through the store; a
/// rank that has begun more collective work than the waiting one has moved past
/// the call. Each rank polls the store every half second.
class DesyncDetector {
 public:
  /// Counts that are equal on all ranks at the same point of the program.
  struct Position {
    std::int64_t passes = 0;       ///< backward passes that average gradients
    std::int64_t collectives = 0;  ///< of the group of all ranks
  };

  /// `position` is called on another thread. With one rank, no thread runs.
  DesyncDetector(const World& world, std::function<Position()> position);
  DesyncDetector(const DesyncDetector&) = delete;
  DesyncDetector& operator=(const DesyncDetector&) = delete;
  ~DesyncDetector();

  /// Asks the other ranks for their positions; called repeatedly by a rank that
  /// waits in `call`. Throws DistributedError, naming `call`, the rank and its
  /// newest collective, if an answer to the previous question shows that a rank
  /// has moved on. That is proof, unless what this rank waits for has arrived
  /// by then.
  void ask(const std::string& call);

 private:
  void answer();
  /// Describes this rank's newest collective; empty without a board.
  [[nodiscard]] std::string own_call() const;

  World world_;
  std::function<Position()> position_;
  /// Store connection of the polling thread.
  c10::intrusive_ptr<c10d::Store> store_;
  std::int64_t question_ = 0;
  std::mutex mutex_;
  std::condition_variable stopped_;
  bool is_stopping_ = false;
  std::thread thread_;
};

}  // namespace accelerate::detail
