#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "format/journal/journal_kinds.h"
#include "trackers/system/system_figures.h"

namespace accelerate::detail {

/// The board on which ranks leave their figures for rank 0. Neither call waits
/// for another rank; both may throw.
class RankBoard {
 public:
  RankBoard() = default;
  RankBoard(const RankBoard&) = delete;
  RankBoard& operator=(const RankBoard&) = delete;
  virtual ~RankBoard() = default;

  /// Replaces this rank's figures.
  virtual void put(const JournalRank& mine) = 0;
  /// The other ranks' figures, in rank order. Ranks that have left none yet are
  /// missing.
  virtual std::vector<JournalRank> others() = 0;
};

/// Functions are called on the thread of RunFigures.
struct RunFiguresOptions {
  /// The time from one sample to the next. All ranks take theirs at the same
  /// times, the multiples of the interval, so that their steps can be compared.
  std::chrono::milliseconds interval{5000};
  std::int64_t rank = 0;
  /// Number of steps so far.
  std::function<std::int64_t()> num_steps = {};
  /// Makes the reader of figures of this machine.
  std::function<SystemReader()> make_reader = {};
  /// Null in a world of one rank.
  std::shared_ptr<RankBoard> board = nullptr;
  /// Takes events of a time in seconds since 1970. Empty on ranks without a
  /// journal, which leave their figures on the board.
  std::function<void(JournalEvent event, double seconds)> report = {};
  /// What was reported since the last call about ranks that hang or are slow;
  /// may be empty.
  std::function<std::vector<std::string>()> rank_reports = {};
  /// Receives one warning if the board can no longer be read.
  std::function<void(const std::string& text)> warn = {};
};

/// Makes journal events about a run's progress: figures of the machine with the
/// steps per second, and the step of each rank.
class RunSampler {
 public:
  /// `seconds`: the time now, since 1970, as below.
  RunSampler(RunFiguresOptions options, double seconds);

  /// Reads this rank's figures. A rank without a journal leaves them on the
  /// board.
  void sample(double seconds);
  /// Reports the last sample, and the figures that the other ranks have left by
  /// now.
  void report();
  [[nodiscard]] bool reports() const { return bool(options_.report); }
  [[nodiscard]] bool has_board() const { return options_.board != nullptr; }

 private:
  void leave_on_board();
  [[nodiscard]] std::vector<JournalRank> all_ranks();

  RunFiguresOptions options_;
  SystemReader reader_;
  double seconds_;
  JournalRank mine_;
  std::vector<JournalScalars::Scalar> system_;
};

/// The time from `now`, since the epoch, to the next multiple of the interval
/// that is at least half an interval away.
std::chrono::milliseconds time_to_sample(
    std::chrono::milliseconds now,
    std::chrono::milliseconds interval);

/// Samples and reports at intervals on a thread of its own, until it is
/// destroyed. Failures do not leave that thread.
class RunFigures {
 public:
  explicit RunFigures(RunFiguresOptions options);
  RunFigures(const RunFigures&) = delete;
  RunFigures& operator=(const RunFigures&) = delete;
  ~RunFigures();

 private:
  void run();
  // False if it is ending.
  bool wait(std::chrono::milliseconds time);

  RunFiguresOptions options_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_ending_ = false;
  std::thread thread_;
};

}  // namespace accelerate::detail
