#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <sys/types.h>

#include "cli/launch/nodes/elastic_messages.h"
#include "launch/board/board.h"

namespace accelerate::cli {

/// This machine's part in one attempt of an elastic group on several machines.
/// Connects the launcher's thread that supervises the ranks with the thread
/// that exchanges texts with machine 0 (ElasticMachines).
class ElasticMember {
 public:
  /// `launcher`: see MachineReport.
  ElasticMember(int machine, int num_seats, std::int64_t launcher);
  ElasticMember(const ElasticMember&) = delete;
  ElasticMember& operator=(const ElasticMember&) = delete;
  ~ElasticMember();

  /// Readable when there is news from machine 0.
  [[nodiscard]] int descriptor() const { return news_; }

  // Functions for the supervising thread.

  /// The board of this machine's ranks, which must outlive all calls of
  /// exchange().
  void use_board(const detail::Board& board);
  void note_start(int seat, pid_t process);
  void note_end(int seat, int wait_status);
  void ask_to_leave();

  struct Orders {
    /// Seats in which to start a process, and the generation in which it
    /// begins.
    std::vector<std::pair<int, std::uint32_t>> starts;
    /// Seats whose process must be killed.
    std::vector<int> kills;
    /// True if a generation has begun.
    bool has_begun = false;
  };
  /// Applies machine 0's decisions to the board, and reports to it what is on
  /// the board. Returns what else must be done.
  Orders exchange();
  /// True while the ranks are leaving a generation.
  [[nodiscard]] bool is_changing() const;
  /// True while a rank here has not called run_elastic() yet.
  [[nodiscard]] bool is_starting() const;
  [[nodiscard]] int rank_of(int seat) const;
  [[nodiscard]] int num_ranks() const;

  // Functions for both threads.

  /// Whether machine 0 has admitted this machine.
  [[nodiscard]] bool belongs() const;
  /// Whether the others continue without this machine.
  [[nodiscard]] bool is_left_out() const;
  /// Whether the others cannot continue without it.
  [[nodiscard]] bool is_refused() const;
  [[nodiscard]] std::optional<GroupOutcome> outcome() const;

  // Functions for the exchanging thread.

  [[nodiscard]] std::string report() const;
  /// Number of times report() has changed.
  [[nodiscard]] std::int64_t num_reports() const;
  void hear(GroupOrders orders);
  void hear_outcome(GroupOutcome outcome);

 private:
  void publish();
  [[nodiscard]] MachineOrders own_orders() const;
  void wake() const;

  int machine_;
  int num_seats_;
  int news_ = -1;
  const detail::Board* board_ = nullptr;
  MachineReport told_;
  std::vector<int> num_killed_;

  mutable std::mutex mutex_;
  std::string report_;
  std::int64_t num_reports_ = 0;
  GroupOrders orders_;
  std::optional<GroupOutcome> outcome_;
};

}  // namespace accelerate::cli
