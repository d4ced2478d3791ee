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
  /// What it waits in, in words.
  std::string in;
  std::chrono::milliseconds time{};
};

/// A rank for which others wait while it does not wait itself.
struct BlockingRank {
  int rank = 0;
  pid_t process = 0;
  /// How long it has been where it is.
  std::chrono::milliseconds time{};
  RankPhase phase = RankPhase::starting;
  std::uint64_t step = 0;
  /// Its newest call in the group that waits for it, or in any; empty if it has
  /// made none.
  std::string last_call;
  /// The process's state as the kernel calls it: R, S, D, T, Z; ' ' if unknown.
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
  /// Each rank's call, where they disagree.
  std::vector<std::pair<int, GroupCall>> calls;
};

/// What ranks do, and what the kernel says of their processes.
struct ObservedRank {
  RankActivity activity;
  char process_state = ' ';
};

/// Finds ranks for which others wait, from looks at the board. Pages have no
/// times: how long something has lasted is counted from the look that first saw
/// it, so the ranks read no clock.
class HangDetector {
 public:
  using Clock = std::chrono::steady_clock;

  explicit HangDetector(std::chrono::milliseconds threshold)
      : threshold_(threshold) {}

  void set_threshold(std::chrono::milliseconds threshold) {
    threshold_ = threshold;
  }

  /// A report the first time that somebody has waited for longer than the
  /// threshold, and again only if other ranks block or the same ones block in
  /// another place. Where all have arrived, or wait for each other, everybody has
  /// to have waited so long: calls take their time, and ranks that make a group
  /// seem to wait in a circle. A disagreement is reported at once.
  std::optional<HangReport> look(
      std::span<const ObservedRank> ranks,
      Clock::time_point now);

  /// How long a rank has been in its phase; for lists of ranks.
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
  // The ranks that have to arrive before a wait can end, as far as the board
  // tells.
  static std::set<int> awaited_by(
      const Wait& wait,
      std::span<const ObservedRank> ranks);
  // The waits that are too long, those in the same call, and those of
  // the ranks that they wait for.
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

/// Several lines, each ended by a line break: who holds up whom, where each
/// rank is. `prefix` begins the first line.
std::string describe(const HangReport& report, const std::string& prefix);

}  // namespace accelerate::detail
