#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/runs/run_place.h"
#include "format/journal/journal_kinds.h"
#include "format/journal/journal_reader.h"
#include "format/journal/run_history.h"

namespace accelerate::cli {

/// A run as recorded in its journal so far. Not thread-safe.
class RunRecord {
 public:
  using Point = detail::RunHistory::Point;
  using Event = detail::RunHistory::Event;
  using Series = std::map<std::string, std::vector<Point>>;
  struct RankSample {
    double time = 0;
    std::vector<detail::JournalRank> ranks;
  };

  /// Throws Error if the journal cannot be opened.
  explicit RunRecord(RunPlace place);

  /// Reads what was added to the journal since the last call, about `most_bytes`
  /// at most. Returns whether there was anything. Throws Error if it cannot be
  /// read.
  bool update(
      std::uint64_t most_bytes = std::numeric_limits<std::uint64_t>::max());
  /// Whether the last update() ended before the end of the journal.
  [[nodiscard]] bool has_more() const { return has_more_; }
  /// Why it was last impossible to read the journal; empty if it was not. Set by
  /// the caller of update(), which decides whether to try again.
  void set_problem(std::string problem) { problem_ = std::move(problem); }
  [[nodiscard]] const std::string& problem() const { return problem_; }

  [[nodiscard]] const RunPlace& place() const { return place_; }
  [[nodiscard]] const std::string& name() const { return place_.name; }
  /// Figures by name, including those logged among other values.
  [[nodiscard]] const Series& series() const { return history_.series(); }
  /// Figures of the machine by name; a point's step is its index.
  [[nodiscard]] const Series& system() const { return system_; }
  [[nodiscard]] const std::vector<RankSample>& ranks() const { return ranks_; }
  /// All other events. The bodies of pictures are left in the journal; see
  /// body_of().
  [[nodiscard]] const std::vector<Event>& events() const {
    return history_.events();
  }
  [[nodiscard]] const std::vector<detail::RunHistory::Session>& sessions()
      const {
    return history_.sessions();
  }
  [[nodiscard]] const Event* last_event(
      std::string_view kind,
      std::string_view name = {}) const {
    return history_.last_event(kind, name);
  }

  /// The body of one of the events. Throws Error if it cannot be read. May be
  /// called by several threads.
  [[nodiscard]] std::string body_of(const Event& event) const;
  /// The checkpoints that have steps, in order.
  [[nodiscard]] std::vector<const Event*> checkpoints() const;

  /// The largest step of any figure.
  [[nodiscard]] std::optional<std::int64_t> last_step() const;
  /// The times of the first and the last entry, in seconds since 1970; 0 if
  /// there are none.
  [[nodiscard]] double begin() const { return begin_; }
  [[nodiscard]] double end() const { return end_; }
  /// How long its processes ran altogether, in seconds: without the time between
  /// one and the next.
  [[nodiscard]] double duration() const;
  [[nodiscard]] std::uint64_t num_damaged_bytes() const {
    return reader_->num_damaged_bytes();
  }
  /// What the last process reported about itself; empty if nothing.
  [[nodiscard]] detail::JournalSessionInfo info() const;

 private:
  void take_entry(const detail::JournalDecoder& entry, std::uint64_t payload);
  void take_event(const detail::JournalDecoder& entry, std::uint64_t payload);
  void take_values(const detail::JournalDecoder& entry);
  void add_system(double time, std::string_view body);
  void drop_lost_samples();

  RunPlace place_;
  std::unique_ptr<detail::JournalReader> reader_;
  detail::RunHistory history_;
  Series system_;
  std::vector<RankSample> ranks_;
  std::vector<detail::RunHistory::LostTime> dropped_;
  bool has_any_ = false;
  bool has_more_ = false;
  std::string problem_;
  double begin_ = 0;
  double end_ = 0;
};

/// The figure that represents a run: among losses, or otherwise among all
/// figures, the one with the most points. Empty if there is none.
std::string main_figure_of(const RunRecord& run);

/// Everything that was configured, by name: configuration and hyperparameters,
/// whose nested names are joined with "/", and what the last process reported
/// about itself ("seeds/...", "versions/...", "num_processes", "host",
/// "command").
std::vector<std::pair<std::string, std::string>> settings_of(
    const RunRecord& run);

/// Opens and reads the runs of find_runs(). If there are several, one that
/// cannot be read is left out, and `warn` says why.
std::vector<std::unique_ptr<RunRecord>> read_runs(
    const std::vector<std::string>& paths,
    const std::function<void(const std::string&)>& warn);

}  // namespace accelerate::cli
