#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <accelerate/world.h>

namespace accelerate::detail {

/// Where some ranks exchange texts through the store, rank by rank or all at
/// once, without touching a process group: for what happens beside training,
/// also on a thread of its own. One object for each rank, used by one thread at
/// a time; all make the same calls in the same order. With one rank nothing is
/// sent.
///
/// Throws DistributedError naming the rank that does not come within the
/// world's timeout, or a store that is gone.
class ACCELERATE_API StoreGroup {
 public:
  /// `ranks`, in the world, the first of which leads. `name` must be of this
  /// meeting alone.
  StoreGroup(const World& world, std::string name, std::vector<int> ranks);

  [[nodiscard]] bool is_leader() const { return place_ == 0; }
  [[nodiscard]] const std::vector<int>& ranks() const { return ranks_; }

  /// Called about twice a second by a rank that waits for others; may throw
  /// what it found out about them.
  void while_waiting(std::function<void(const std::string& what)> look) {
    look_ = std::move(look);
  }

  /// From any thread: a call that waits now, or would, throws DistributedError
  /// soon. For a rank that fails and must not wait for others.
  void cancel() { is_cancelled_ = true; }

  /// On the leader what every rank said, in the order of `ranks`; elsewhere
  /// nothing. `what`: what they meet for.
  std::vector<std::string> gather(
      const std::string& text,
      const std::string& what);
  /// What the leader says, on all ranks.
  std::string tell(const std::string& text, const std::string& what);
  /// What every rank says, on all ranks.
  std::vector<std::string> exchange(
      const std::string& text,
      const std::string& what);

 private:
  std::string
  wait_for(const std::string& key, int world_rank, const std::string& what);
  void forget(const std::string& key);

  c10::intrusive_ptr<c10d::Store> store_;
  std::chrono::milliseconds timeout_;
  std::vector<int> ranks_;
  std::size_t place_ = 0;
  std::uint64_t count_ = 0;
  std::function<void(const std::string& what)> look_;
  std::atomic<bool> is_cancelled_{false};
  /// What the leader said and not everybody has read for certain.
  std::vector<std::string> said_;
};

}  // namespace accelerate::detail
