#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "comm/transport/transport.h"
#include "comm/transport/transports.h"

namespace accelerate::detail {

/// Which other ranks of a group have ended. One that had left the group before,
/// once all its operations had ended, has not died.
class Departures {
 public:
  explicit Departures(const ConnectRequest& request);

  /// Without, ranks that end go unnoticed.
  void watch(RankIsGone is_gone) { is_gone_ = std::move(is_gone); }
  /// Throws NcclError if a rank has ended that the others wait for.
  void require_all_ranks() const;
  /// A rank that has ended and can no longer be awaited. Called by one thread at
  /// a time.
  [[nodiscard]] std::optional<int> lost_rank();
  /// Tells the others, through the store.
  void leave() const;

 private:
  [[nodiscard]] std::vector<int> gone_ranks() const;
  [[nodiscard]] bool has_left(int rank) const;

  c10::intrusive_ptr<c10d::Store> store_;
  int own_;
  std::vector<int> others_;
  RankIsGone is_gone_;
  /// When ranks that have ended count as lost.
  std::map<int, std::chrono::steady_clock::time_point> lost_at_;
};

}  // namespace accelerate::detail
