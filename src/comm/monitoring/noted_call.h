#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <accelerate/detail/call_site.h>

#include "launch/board/board_writer.h"

namespace accelerate::detail {

class WorldBoard;

/// The collectives of one group on the board: this rank's and those of the
/// other ranks on this machine. Used by the threads that use the group.
class NotedCalls {
 public:
  struct Options {
    std::shared_ptr<WorldBoard> board = nullptr;
    std::string group = {};
    int size = 1;
    /// The members' world ranks; roots are noted as world ranks.
    std::vector<int> world_ranks = {};
    /// Whether to compare calls, because the transport does not.
    bool compares = false;
  };

  /// Null if the board is full.
  static std::shared_ptr<NotedCalls> make(Options options);
  NotedCalls(Options options, BoardLaneWriter& lane)
      : options_(std::move(options)), lane_(lane) {}

  /// Notes a call and returns its number. If calls are compared, throws
  /// DistributedError with the calls of all ranks if another rank has made a
  /// different call in this place.
  std::uint64_t begin(const NotedCall& call);
  void end(std::uint64_t number) noexcept { lane_.end(number); }
  [[nodiscard]] int rank_in_world(int group_rank) const {
    return options_.world_ranks.at(static_cast<std::size_t>(group_rank));
  }

 private:
  void find_peers();
  void compare(std::uint64_t number);
  [[noreturn]] void throw_disagreement(std::uint64_t number) const;

  Options options_;
  BoardLaneWriter& lane_;
  // The lanes of the other ranks on this machine, once all have been found.
  std::vector<const BoardLane*> peers_;
  int num_searches_ = 0;
};

/// Notes a collective for the lifetime of the object; if `calls` is null, does
/// nothing.
class NotedCallScope {
 public:
  NotedCallScope(NotedCalls* calls, const NotedCall& call)
      : calls_(calls), number_(calls == nullptr ? 0 : calls->begin(call)) {}
  NotedCallScope(const NotedCallScope&) = delete;
  NotedCallScope& operator=(const NotedCallScope&) = delete;
  ~NotedCallScope() {
    if (calls_ != nullptr) calls_->end(number_);
  }
  /// The call's number; 0 if it is not noted.
  [[nodiscard]] std::uint64_t number() const { return number_; }

 private:
  NotedCalls* calls_;
  std::uint64_t number_;
};

}  // namespace accelerate::detail
