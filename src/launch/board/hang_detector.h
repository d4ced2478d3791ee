#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "launch/board/rank_activity.h"

namespace accelerate::detail {

/// A rank that waits for others.
struct WaitingRank {
  int rank = 0;
  /// Describes the call in which it waits.
  std::string in;
  std::chrono::milliseconds time{};
};

/// A rank that others wait for, and that is not waiting itself.
struct BlockingRank {
  int rank = 0;
  pid_t process = 0;
  /// How long it has been in its current place.
  std::chrono::milliseconds time{};
  RankPhase phase = RankPhase::starting;
  std::uint64_t step = 0;
  /// Its newest call in the group that waits for it, or in any group; empty if
  /// it has made none.
  std::string last_call;
  /// The kernel's state of the process: R, S, D, T, Z; ' ' if unknown.
  char process_state = ' ';
};

/// Why ranks have waited for longer than the threshold.
struct HangReport {
  enum class Kind {
    late,          ///< ranks did not arrive: `blocking`
    disagreement,  ///< ranks made different calls: `calls`
    cycle,         ///< ranks wait for each other
    elsewhere,     ///< ranks of another machine, or the connection itself
  };

  Kind kind = Kind::late;
  std::vector<WaitingRank> waiting;
  std::vector<BlockingRank> blocking;
  /// Each rank's call, if they disagree.
  std::vector<std::pair<int, GroupCall>> calls;
};

/// A rank's activity, and its process's state in the kernel.
struct ObservedRank {
  RankActivity activity;
  char process_state = ' ';
};

/// Finds ranks that others wait for, by polling the board. Pages have no
/// timestamps: durations are counted from the look that first saw a state, so
/// ranks never read a clock.
class HangDetector {
 public:
  using Clock = std::chrono::steady_clock;

  explicit HangDetector(std::chrono::milliseconds threshold)
      : threshold_(threshold) {}

  void set_threshold(std::chrono::milliseconds threshold) {
    threshold_ = threshold;
  }

  /// Returns a report the first time that a rank has waited for longer than the
  /// threshold, and again only if other ranks block, or the same ones in
  /// another place. If all ranks have arrived, or wait for each other, every
  /// rank must have waited that long: calls take time, and ranks that make a
  /// group seem to wait in a circle. A disagreement is reported immediately.
  std::optional<HangReport> look(
      std::span<const ObservedRank> ranks,
      Clock::time_point now);

  /// Returns how long a rank has been in its phase; for lists of ranks.
  [[nodiscard]] std::chrono::milliseconds time_in_phase(
      int rank,
      Clock::time_point now) const;

 private:
  struct Seen {
    std::uint64_t value = 0;
    Clock::time_point since{};
  };
  // A rank, and a group's name, "wait N" or "phase".
  using Key = std::pair<int, std::string>;

  struct Wait {
    const ObservedRank* rank = nullptr;
    const GroupCall* call = nullptr;
    const PeerWait* peers = nullptr;
    std::chrono::milliseconds time{};
  };

  std::chrono::milliseconds
  time_of(const Key& key, std::uint64_t value, Clock::time_point now);
  std::vector<Wait> note_waits(
      std::span<const ObservedRank> ranks,
      Clock::time_point now);
  [[nodiscard]] std::optional<HangReport> find_disagreement(
      std::span<const ObservedRank> ranks) const;
  // The ranks that must arrive before a wait can end, as far as the board
  // shows.
  static std::set<int> awaited_by(
      const Wait& wait,
      std::span<const ObservedRank> ranks);
  // The waits that are too long, those in the same call, and those of the ranks
  // being waited for.
  [[nodiscard]] std::vector<Wait> find_involved(
      std::span<const ObservedRank> ranks,
      std::span<const Wait> waits) const;
  [[nodiscard]] HangReport explain(
      std::span<const ObservedRank> ranks,
      std::span<const Wait> waits,
      Clock::time_point now) const;
  [[nodiscard]] BlockingRank describe_blocking(
      const ObservedRank& rank,
      std::span<const Wait> waits,
      Clock::time_point now) const;
  [[nodiscard]] bool is_new(const HangReport& report);

  std::chrono::milliseconds threshold_;
  std::map<Key, Seen> seen_;
  std::string reported_;
};

/// Formats a report as lines that each end with a line break: which ranks hold
/// up which, and where each rank is. `prefix` begins the first line.
std::string describe(const HangReport& report, const std::string& prefix);

}  // namespace accelerate::detail
