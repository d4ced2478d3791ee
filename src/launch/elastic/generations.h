#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

#include <sys/types.h>

#include "launch/board/board.h"

namespace accelerate::detail {

/// A launcher's decisions for an elastic group: who takes the place of a rank
/// that has ended, and when the next generation begins. It starts no processes
/// itself. Ranks are in the order of their seats, which are those of one machine
/// after the other where there are several (ElasticKeeper).
///
/// A generation ends because a rank has ended (the others are to leave it at
/// once), or because somebody asks for another size (they leave it at the end of
/// a step). The next one begins when every process that belongs to it has
/// arrived; see ElasticSeat.
class Generations {
 public:
  struct Options {
    /// The sizes that the group may have. The board has a page per seat, the
    /// most.
    int fewest = 1;
    int most = 1;
    /// How many processes may still be started in the place of others. Shared
    /// with what starts the whole group again.
    int* num_restarts_left = nullptr;
    /// Seats that are empty in the first generation.
    std::vector<int> absent = {};
    /// How long ranks may take to leave a generation that is broken: a step
    /// notices at its next collective.
    std::chrono::milliseconds patience = std::chrono::seconds(60);
  };

  /// Makes the first generation, of all seats but the absent ones.
  Generations(const Board& board, Options options);
  Generations(const Generations&) = delete;
  Generations& operator=(const Generations&) = delete;

  /// A process was started for a seat.
  void add(int seat, pid_t process);

  /// What follows the failure of a process.
  enum class Loss {
    ends_group,  ///< the group is not, or no longer, elastic
    replaced,    ///< start another process for the seat
    smaller,     ///< the others go on without it
    harmless,    ///< it was not, or no longer, a rank
  };
  Loss lose(int seat) { return lose(seat, /*may_replace=*/true); }
  /// A machine with these seats is gone. Nobody takes their places; ranks of
  /// others that end because of it are replaced, and cost no restart. Returns
  /// ends_group, smaller or harmless.
  Loss lose_machine(int first_seat, int num_seats);
  /// A process has ended as it should. Returns true if the others go on without
  /// it.
  bool finish(int seat);

  /// The size that somebody asks for, once it can be given; 0: none.
  int take_request();
  /// Makes the group grow or shrink to `num_ranks`, which is possible. Returns
  /// the seats for which a process is to be started.
  std::vector<int> resize(int num_ranks);
  /// Makes the group grow by these seats, if all are empty, and no other change
  /// is under way: true if a process is to be started for each.
  bool join(int first_seat, int num_seats);
  /// What became of a wish to leave.
  enum class Leave { begun, later, refused };
  /// Makes the group shrink by these seats at the end of a step: refused if too
  /// few would be left, or if the group is not elastic; `later` while another
  /// change is under way.
  Leave leave(int first_seat, int num_seats);

  /// Does what is due: true when the next generation has begun.
  bool advance();
  /// True while a generation is about to end.
  [[nodiscard]] bool is_changing() const;
  /// True if ranks have not left a broken generation in time, or cannot any
  /// more: the group has to be ended.
  [[nodiscard]] bool has_failed() const;
  /// The seats of ranks that have not left a broken generation in time.
  [[nodiscard]] std::vector<int> late() const;
  /// True when the first rank has ended as it should.
  [[nodiscard]] bool has_finished() const { return has_finished_; }

  [[nodiscard]] std::uint32_t current() const { return current_; }
  /// The generation in which a process begins that is started now.
  [[nodiscard]] std::uint32_t next() const { return current_ + 1; }
  [[nodiscard]] int num_ranks() const;
  /// The rank of a seat in the generation in force; -1: none.
  [[nodiscard]] int rank_of(int seat) const;

 private:
  enum class State {
    empty,
    member,    ///< a rank
    leaving,   ///< a rank for as long as the generation lasts
    joining,   ///< a process that will be a rank of the next generation
    departed,  ///< a process that is not a rank any more
  };
  struct Seat {
    State state = State::member;
    pid_t process = 0;
    /// Set for a joining process that takes a dead one's place.
    bool replaces = false;
  };

  [[nodiscard]] BoardHeader& header() const { return board_.shared_header(); }
  [[nodiscard]] BoardSeat& on_board(int seat) const {
    return board_.page(seat).seat;
  }
  [[nodiscard]] bool has_announced(int seat) const;
  [[nodiscard]] bool has_arrived(int seat) const;
  [[nodiscard]] bool all_announced() const;
  [[nodiscard]] bool is_broken() const;
  // How many ranks the next generation has, as things are.
  [[nodiscard]] int num_staying() const;
  Loss lose(int seat, bool may_replace);
  void break_generation();
  Loss replace_or_shrink(int seat, bool may_replace);
  bool take_restart();
  void vacate(int seat);
  void begin_next();

  const Board& board_;
  Options options_;
  std::vector<Seat> seats_;
  std::uint32_t current_ = 1;
  // The restart that a broken generation has cost covers all that it takes down.
  bool is_paid_ = false;
  bool has_finished_ = false;
  std::chrono::steady_clock::time_point deadline_;
};

}  // namespace accelerate::detail
