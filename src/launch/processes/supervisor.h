#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <sys/types.h>

namespace accelerate::detail {

/// A descriptor that a supervisor reads from while ranks run.
class EventSource {
 public:
  virtual ~EventSource() = default;
  /// The descriptor to wait for; negative once nothing more will come.
  [[nodiscard]] virtual int descriptor() const = 0;
  virtual void read() = 0;
  /// While what is read could not be passed on, a descriptor that becomes
  /// readable once it can; otherwise -1. Ranks that have ended, or were told
  /// to, are read regardless.
  [[nodiscard]] virtual int gate() const { return -1; }
};

/// Supervises the ranks of this machine until all have ended. When one fails,
/// waits briefly for another failure that may be the cause, then ends the
/// others with SIGTERM and later SIGKILL.
class Supervisor {
 public:
  struct Options {
    /// Readable when a signal, such as SIGCHLD, has arrived; read before
    /// checking for ranks that have ended. Null: the supervisor does not handle
    /// signals, and considers a rank ended when its sources are.
    EventSource* signals = nullptr;
    /// Another source to read from, or null.
    EventSource* event = nullptr;
    /// True if every rank leads a process group; signals then go to the groups.
    bool has_groups = false;
    /// Whether a peer cannot have brought down a rank that ended with this
    /// status, so that there is no other cause to wait for. Null: always waits.
    bool (*is_surely_the_cause)(int wait_status) = nullptr;
    /// Called with a rank's index in ranks() when it has ended and its output
    /// has been read. May be empty.
    std::function<void(std::size_t index)> on_end = {};
    /// Called when a rank has failed; returns true if the group has not failed,
    /// because another process replaces the rank or the others continue without
    /// it. May call add(). May be empty.
    std::function<bool(std::size_t index)> is_made_good = {};
    /// True while ranks may still be added even though none is running. May be
    /// empty.
    std::function<bool()> awaits_more = {};
    /// Called at least this often while ranks run; 0: never.
    std::chrono::milliseconds interval{0};
    std::function<void()> on_interval = {};
  };

  struct Rank {
    pid_t pid = -1;
    /// Its outputs, in reading order. Not owned.
    std::vector<EventSource*> sources;
    bool is_running = true;
    int wait_status = 0;
    /// True if the others continue without it. Its process id may have been
    /// reused.
    bool has_left = false;
    /// The last signal with which the supervisor itself ended it; 0: none.
    int ended_with = 0;
  };

  explicit Supervisor(Options options) : options_(std::move(options)) {}

  void add(pid_t pid, std::vector<EventSource*> sources);
  /// Returns when all ranks have ended and their outputs have been read. If
  /// ranks have process groups, also kills processes started by ranks of a
  /// failed group.
  void run();
  /// Kills all ranks, for example if one of them cannot be started.
  void kill_and_wait();

  /// Called when the process has ended and no longer belongs to the group.
  void forget(std::size_t index) { ranks_[index].has_left = true; }
  /// Treats an earlier failure as one of the group after all, and ends the
  /// group.
  void give_up(std::size_t index);
  /// Changes Options::interval.
  void set_interval(std::chrono::milliseconds interval);

  void send_to_all(int signal) const;
  /// Sends SIGTERM to all ranks; their ends no longer count as failures.
  void terminate();
  /// Expects all ranks to end, after they were signalled from outside; those
  /// still running after `time` are killed.
  void expect_end(std::chrono::milliseconds time);

  [[nodiscard]] const std::vector<Rank>& ranks() const { return ranks_; }
  /// Indices into ranks() of the ranks that failed before they were terminated,
  /// in the order of failure.
  [[nodiscard]] const std::vector<std::size_t>& failures() const {
    return failures_;
  }

 private:
  using Clock = std::chrono::steady_clock;

  [[nodiscard]] bool all_dead() const;
  [[nodiscard]] bool is_over() const;
  void wait_for_something();
  [[nodiscard]] int gate_of(const EventSource& source) const;
  [[nodiscard]] int milliseconds_to_next_deadline() const;
  void collect_dead();
  void note_failure(std::size_t index);
  void end_all(int signal);
  void keep_deadlines();
  void keep_interval();

  Options options_;
  std::vector<Rank> ranks_;
  std::vector<std::size_t> failures_;
  bool was_terminated_ = false;
  bool expects_end_ = false;
  std::optional<Clock::time_point> terminate_at_;
  std::optional<Clock::time_point> kill_at_;
  std::optional<Clock::time_point> drain_until_;
  std::optional<Clock::time_point> next_interval_;
};

/// A failed rank, one of several that may be the cause.
struct Suspect {
  std::size_t rank = 0;
  bool is_surely_the_cause = false;
  /// True if it reported a lost peer, or was terminated.
  bool is_victim = false;
};

/// Returns the rank of the first suspect that is surely the cause, otherwise
/// the first that is not a victim, otherwise the first; nothing if there are
/// none.
std::optional<std::size_t> find_cause(std::span<const Suspect> suspects);

/// Whether a rank was killed by a signal that a peer's end cannot cause.
bool is_surely_the_cause(int wait_status);

}  // namespace accelerate::detail
