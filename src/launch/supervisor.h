#pragma once

#include <chrono>
#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include <sys/types.h>

namespace accelerate::detail {

/// Something that a supervisor reads from while ranks run.
class EventSource {
 public:
  virtual ~EventSource() = default;
  /// The descriptor to wait for; negative once nothing more will come.
  [[nodiscard]] virtual int descriptor() const = 0;
  virtual void read() = 0;
};

/// Watches the ranks of this machine until all have ended. When one fails, it
/// waits a moment for the one that may have brought it down, and ends the
/// others: SIGTERM, then SIGKILL.
class Supervisor {
 public:
  struct Options {
    /// Readable when a signal has come, SIGCHLD among them; read before every
    /// look for ranks that have ended. Null: this process's signals are not the
    /// supervisor's, and a rank has ended when its sources have.
    EventSource* signals = nullptr;
    /// Whatever else may happen, or null.
    EventSource* event = nullptr;
    /// Every rank leads a process group, which gets the signals.
    bool has_groups = false;
    /// Whether a rank that ended so cannot have been brought down by a peer:
    /// then there is nobody to wait for. Null: one always waits.
    bool (*is_surely_the_cause)(int wait_status) = nullptr;
  };

  struct Rank {
    pid_t pid = -1;
    /// What it says, in the order in which it is read. Not owned.
    std::vector<EventSource*> sources;
    bool is_running = true;
    int wait_status = 0;
  };

  explicit Supervisor(const Options& options) : options_(options) {}

  void add(pid_t pid, std::vector<EventSource*> sources);
  /// Returns when all ranks have ended and said everything. What a failed
  /// group's ranks have started themselves is killed, too, if it has groups.
  void run();
  /// Kills all ranks, for instance as one of them cannot be started.
  void kill_and_wait();

  void send_to_all(int signal);
  /// Tells all to end; how they do is no failure.
  void terminate();
  /// The ranks were told to end by another process.
  void expect_end();

  [[nodiscard]] const std::vector<Rank>& ranks() const { return ranks_; }
  /// Those that failed before they were told to end, the first one first, by
  /// their places in ranks().
  [[nodiscard]] const std::vector<std::size_t>& failures() const {
    return failures_;
  }

 private:
  using Clock = std::chrono::steady_clock;

  [[nodiscard]] bool all_dead() const;
  [[nodiscard]] bool is_over() const;
  void wait_for_something();
  [[nodiscard]] int milliseconds_to_next_deadline() const;
  void collect_dead();
  void note_failure(std::size_t index);
  void keep_deadlines();

  Options options_;
  std::vector<Rank> ranks_;
  std::vector<std::size_t> failures_;
  bool was_terminated_ = false;
  bool expects_end_ = false;
  std::optional<Clock::time_point> terminate_at_;
  std::optional<Clock::time_point> kill_at_;
  std::optional<Clock::time_point> drain_until_;
};

/// A rank that failed, where one of several is the cause.
struct Suspect {
  std::size_t rank = 0;
  bool is_surely_the_cause = false;
  /// It says that a peer was lost, or was told to end.
  bool is_victim = false;
};

/// The rank of the first that is surely the cause, else of the first that is no
/// victim, else of the first; nothing if there are none.
std::optional<std::size_t> find_cause(std::span<const Suspect> suspects);

/// Killed by a signal that no peer brings about by its own end.
bool is_surely_the_cause(int wait_status);

}  // namespace accelerate::detail
