#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

#include <sys/types.h>

#include "launch/board/board.h"

namespace accelerate::detail {

/// A launcher's decisions for an elastic group on one machine: who takes the
/// place of a rank that has ended, and when the next generation begins. It
/// starts no processes itself. Ranks are in the order of their seats.
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
    /// How long ranks may take to leave a generation that is broken: a step
    /// notices at its next collective.
    std::chrono::milliseconds patience = std::chrono::seconds(60);
  };

  /// Makes the first generation, of all seats.
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
  Loss lose(int seat);
  /// A process has ended as it should. Returns true if the others go on without
  /// it.
  bool finish(int seat);

  /// The size that somebody asks for, once it can be given; 0: none.
  int take_request();
  /// Makes the group grow or shrink to `num_ranks`, which is possible. Returns
  /// the seats for which a process is to be started.
  std::vector<int> resize(int num_ranks);

  /// Does what is due: true when the next generation has begun.
  bool advance();
  /// True while a generation is about to end.
  [[nodiscard]] bool is_changing() const;
  /// True if ranks have not left a broken generation in time, or cannot any
  /// more: the group has to be ended.
  [[nodiscard]] bool has_failed() const;

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
