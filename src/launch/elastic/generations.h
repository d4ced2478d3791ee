#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

#include <sys/types.h>

#include "launch/board/board.h"
#include "launch/elastic/seat_table.h"

namespace accelerate::detail {

/// A launcher's decisions for an elastic group: which process replaces a rank
/// that has ended, and when the next generation begins. Does not start
/// processes itself. Ranks are in seat order; with several machines, one
/// machine's seats come after another's (ElasticKeeper).
///
/// A generation ends because a rank has ended (the others must leave it
/// immediately), or because another size is requested (they leave it at the end
/// of a step). The next one begins when all of its processes have arrived; see
/// ElasticSeat.
class Generations {
 public:
  struct Options {
    /// The sizes that the group may have. The board has `most` pages, one per
    /// seat.
    int fewest = 1;
    int most = 1;
    /// How many replacement processes may still be started. Shared with
    /// restarts of the whole group.
    int* num_restarts_left = nullptr;
    /// Seats that are empty in the first generation.
    std::vector<int> absent = {};
    /// How long ranks may take to leave a broken generation: a step notices at
    /// its next collective.
    std::chrono::milliseconds patience = std::chrono::seconds(60);
  };

  /// Makes the first generation, of all seats but the absent ones.
  Generations(const Board& board, Options options);
  Generations(const Generations&) = delete;
  Generations& operator=(const Generations&) = delete;

  /// Called when a process has been started for a seat.
  void add(int seat, pid_t process) { seats_[seat].process = process; }

  /// What follows from the failure of a process.
  enum class Loss {
    ends_group,  ///< the group is not, or no longer, elastic
    replaced,    ///< start another process for the seat
    smaller,     ///< the others continue without it
    harmless,    ///< it was not, or no longer, a rank
  };
  Loss lose(int seat) { return lose(seat, /*may_replace=*/true); }
  /// Called when a machine with these seats is gone. Its seats are not
  /// refilled; other machines' ranks that end because of it are replaced,
  /// without costing restarts. Returns ends_group, smaller or harmless.
  Loss lose_machine(int first_seat, int num_seats);
  /// Called when a process has ended normally. Returns true if the others
  /// continue without it.
  bool finish(int seat);

  /// Takes the requested size once it can be granted; 0: none.
  int take_request();
  /// Makes the group grow or shrink to `num_ranks`, which must be possible.
  /// Returns the seats for which a process must be started.
  std::vector<int> resize(int num_ranks);
  /// Makes the group grow by these seats, if all are empty and no other change
  /// is in progress. Returns true if a process must be started for each.
  bool join(int first_seat, int num_seats);
  /// The outcome of a request to leave.
  enum class Leave { begun, later, refused };
  /// Makes the group shrink by these seats at the end of a step: `refused` if
  /// too few would be left, or if the group is not elastic; `later` while
  /// another change is in progress.
  Leave leave(int first_seat, int num_seats);

  /// Does what is due. Returns true when the next generation has begun.
  bool advance();
  /// True while a generation is about to end.
  [[nodiscard]] bool is_changing() const;
  /// True if ranks have not left a broken generation in time, or no longer can:
  /// the group must be ended.
  [[nodiscard]] bool has_failed() const;
  /// The seats of ranks that have not left a broken generation in time.
  [[nodiscard]] std::vector<int> late() const;
  /// True when the first rank has ended normally.
  [[nodiscard]] bool has_finished() const { return has_finished_; }

  [[nodiscard]] std::uint32_t current() const { return current_; }
  /// The generation in which a process that is started now would begin.
  [[nodiscard]] std::uint32_t next() const { return current_ + 1; }
  [[nodiscard]] int num_ranks() const { return header().num_ranks.load(); }
  /// The rank of a seat in the current generation; -1: none.
  [[nodiscard]] int rank_of(int seat) const { return seats_.rank_of(seat); }

 private:
  using State = SeatTable::State;

  [[nodiscard]] BoardHeader& header() const { return board_.shared_header(); }
  [[nodiscard]] bool all_announced() const;
  [[nodiscard]] bool is_broken() const;
  Loss lose(int seat, bool may_replace);
  void break_generation();
  Loss replace_or_shrink(int seat, bool may_replace);
  bool take_restart();
  void begin_next();

  const Board& board_;
  Options options_;
  SeatTable seats_;
  std::uint32_t current_ = 1;
  // A broken generation costs one restart, which covers all ranks that it takes
  // down.
  bool is_paid_ = false;
  bool has_finished_ = false;
  std::chrono::steady_clock::time_point deadline_;
};

}  // namespace accelerate::detail
