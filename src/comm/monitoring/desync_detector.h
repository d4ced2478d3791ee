#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <accelerate/world.h>

namespace accelerate::detail {

/// Tells a rank that waits for others in a call whether they will ever come. A
/// thread of each rank answers, through the store, how far the rank is; one
/// that has begun more collective work than the waiting rank has passed the
/// call by. Costs a look into the store every half second.
class DesyncDetector {
 public:
  /// Counts that are equal on all ranks at the same place of the program.
  struct Position {
    std::int64_t passes = 0;       ///< backward passes that average gradients
    std::int64_t collectives = 0;  ///< of the group of all
  };

  /// `position` is called by another thread. With one rank nothing runs.
  DesyncDetector(const World& world, std::function<Position()> position);
  DesyncDetector(const DesyncDetector&) = delete;
  DesyncDetector& operator=(const DesyncDetector&) = delete;
  ~DesyncDetector();

  /// For a rank that waits in `call`, now and again: asks where the others are,
  /// and throws DistributedError, naming `call` and the rank, if an answer to
  /// the last question says that one has gone on without it.
  void ask(const std::string& call);

 private:
  void answer();

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
