#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "comm/transport/transport.h"
#include "comm/transport/transports.h"

namespace accelerate::detail {

/// Which other ranks of a group have ended. One that had left the group before has
/// not died: operations that it began end on the others' devices, too.
class Departures {
 public:
  explicit Departures(const ConnectRequest& request);

  /// Without, ranks that end go unnoticed.
  void watch(RankIsGone is_gone) { is_gone_ = std::move(is_gone); }
  /// Throws NcclError if a rank has ended that the others wait for.
  void require_all_ranks() const;
  /// A rank that has ended, and for which an operation would wait forever. Called
  /// by one thread at a time.
  [[nodiscard]] std::optional<int> lost_rank(std::uint64_t operation);
  /// Tells the others, through the store, how many operations this rank has begun,
  /// all of which have ended here.
  void leave(std::uint64_t num_begun) const;

 private:
  [[nodiscard]] std::vector<int> gone_ranks() const;
  struct Departure {
    /// When operations fail that wait for a rank that has died.
    std::chrono::steady_clock::time_point end;
    /// Known if the rank has left.
    std::optional<std::uint64_t> num_begun;
  };
  [[nodiscard]] Departure departure_of(int rank) const;

  c10::intrusive_ptr<c10d::Store> store_;
  int own_;
  std::vector<int> others_;
  RankIsGone is_gone_;
  std::map<int, Departure> departures_;
};

}  // namespace accelerate::detail
