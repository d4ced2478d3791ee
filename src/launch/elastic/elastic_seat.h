#pragma once

#include <chrono>
#include <cstdint>

#include "launch/board/board.h"

namespace accelerate::detail {

/// A rank's place in one generation of an elastic group.
struct ElasticPlace {
  std::uint32_t generation = 0;
  /// -1: the process leaves the group.
  int rank = -1;
  int num_ranks = 0;
  /// Its rank among those of this machine.
  int local_rank = 0;
  int num_local_ranks = 0;
};

/// A process's seat in its launcher's elastic group, on the launcher's board.
/// The process keeps its seat while other ranks are replaced, and while the
/// group grows and shrinks.
class ElasticSeat {
 public:
  /// `index`: the page on the board. `first_generation`: the generation in
  /// which the process begins.
  ElasticSeat(Board board, int index, std::uint32_t first_generation);
  ElasticSeat(const ElasticSeat&) = delete;
  ElasticSeat& operator=(const ElasticSeat&) = delete;

  /// Whether the launcher replaces ranks at all.
  [[nodiscard]] bool is_elastic() const;
  /// The most ranks that the group may have.
  [[nodiscard]] int most_ranks() const;
  /// Whether the group may have ranks on other machines.
  [[nodiscard]] bool spans_machines() const {
    return most_ranks() > board_.num_pages();
  }
  /// Tells the launcher that this process stays when others end, and returns
  /// its place as soon as the next generation begins.
  ElasticPlace take_place();
  /// Returns true once ranks must leave the generation taken last, because one
  /// of them has ended. Waits up to `patience` for the launcher to notice.
  [[nodiscard]] bool was_broken(std::chrono::milliseconds patience) const;
  /// The generation that the launcher wants after the end of a step; the
  /// current one if it wants none.
  [[nodiscard]] std::uint32_t wanted() const;
  /// Makes the next take_place() wait for this generation, which all ranks have
  /// agreed on.
  void leave_for(std::uint32_t generation) { next_ = generation; }
  /// Tells the launcher that this process can no longer be replaced alone.
  void withdraw();

 private:
  [[nodiscard]] BoardHeader& header() const { return board_.shared_header(); }
  [[nodiscard]] BoardSeat& seat() const { return board_.page(index_).seat; }

  Board board_;
  int index_;
  /// The generation taken last, and the one to take next.
  std::uint32_t current_ = 0;
  std::uint32_t next_;
};

/// Whether ranks of `generation` must leave it.
inline bool is_broken(const Board& board, std::uint32_t generation) {
  return board.header().target.load() > generation;
}

}  // namespace accelerate::detail
