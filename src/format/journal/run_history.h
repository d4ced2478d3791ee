#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "format/journal/journal_decoder.h"
#include "format/journal/journal_entry.h"

namespace accelerate::detail {

/// What a run did, from the entries of its journal. Steps that were repeated
/// after a crash appear once, with their repeated values.
class RunHistory {
 public:
  struct Point {
    std::int64_t step = 0;
    double time = 0;
    double value = 0;
    std::size_t session = 0;  ///< number of processes begun so far

    bool operator==(const Point&) const = default;
  };
  /// A range of bytes in the journal's file.
  struct Place {
    std::uint64_t offset = 0;
    std::size_t num_bytes = 0;
  };
  struct Event {
    std::optional<std::int64_t> step;
    double time = 0;
    JournalEvent event;
    /// The place of the body, if it was left in the file.
    std::optional<Place> body;
  };
  struct Session {
    double begin = 0;
    double end = 0;  ///< the time of its last entry
    std::string description;
  };
  /// A time interval, without its end, whose work was lost because the run
  /// continued from an older checkpoint.
  struct LostTime {
    double begin = 0;
    double end = 0;

    [[nodiscard]] bool has(double time) const {
      return begin <= time && time < end;
    }
    bool operator==(const LostTime&) const = default;
  };

  RunHistory() = default;
  RunHistory(RunHistory&&) = default;
  RunHistory& operator=(RunHistory&&) = default;

  /// Adds entries in journal order; may be called again for later ones. Takes n
  /// log n time in their number, whatever they contain.
  void add(const std::vector<JournalEntry>& entries);
  /// The functions below add single entries. What they change is seen once
  /// settle() has been called.
  void add(const JournalEntry& entry);
  /// Begins a frame, whose names are numbered from 0 again.
  void begin_frame() { frame_series_.clear(); }
  /// Adds the scalars of the decoder's current entry in that frame.
  void add_scalars(const JournalDecoder& decoder);
  void add_event(Event event);
  void settle();

  /// Series by name; the points of each series are sorted by step.
  [[nodiscard]] const std::map<std::string, std::vector<Point>>& series()
      const {
    return series_;
  }
  [[nodiscard]] const std::vector<Event>& events() const { return events_; }
  [[nodiscard]] const std::vector<Session>& sessions() const {
    return sessions_;
  }
  /// Intervals in the order in which they were noticed. Samples of the system
  /// and of ranks, which have no steps, are dropped if they were taken during
  /// one.
  [[nodiscard]] const std::vector<LostTime>& lost_times() const {
    return lost_times_;
  }
  /// Whether the work of that time was lost.
  [[nodiscard]] bool has_lost(double time) const;
  /// The last event of that kind and name, or null.
  [[nodiscard]] const Event* last_event(
      std::string_view kind,
      std::string_view name = {}) const;

 private:
  using Points = std::vector<Point>;
  // A series of the frame, and the epoch in which it was last noted.
  struct FrameSeries {
    Points* points = nullptr;
    std::uint64_t epoch = 0;
  };
  // What is known about a series.
  struct SeriesState {
    std::uint64_t epoch = 0;
    /// Its step in by_last_step_; nothing if it is not there.
    std::optional<std::int64_t> listed_step;
    /// Points before its last, by step, to be merged into it.
    std::map<std::int64_t, Point> late;
  };

  void touch(Points& points);
  void add_point(
      Points& points,
      std::optional<std::int64_t> step,
      double time,
      double value);
  void drop_last(Points& points);
  void drop_repeated(Points& points, std::int64_t step);
  void drop_after(std::int64_t step, double time);
  void list_touched();
  void note_lost(LostTime lost);
  void merge_late_points();
  void merge_lost_times();
  void remove_void_events();
  void pass(double time);

  std::map<std::string, Points> series_;
  std::vector<FrameSeries> frame_series_;  // of the names of the frame
  std::unordered_map<Points*, SeriesState> states_;
  std::vector<Points*> with_late_points_;
  // Series that were given points since the last rewind, which begins an epoch.
  // The others are in by_last_step_, with their last steps or greater ones.
  std::uint64_t epoch_ = 1;
  std::vector<Points*> touched_;
  std::set<std::pair<std::int64_t, Points*>> by_last_step_;

  std::vector<Event> events_;
  // Steps and indices of events, as a heap with the greatest step in front.
  std::vector<std::pair<std::int64_t, std::size_t>> event_steps_;
  std::vector<std::size_t> void_events_;
  bool has_samples_ = false;  // among the events

  std::vector<Session> sessions_;
  std::vector<LostTime> lost_times_;
  std::vector<LostTime> merged_times_;  // lost_times_, disjoint and in order
  bool has_new_lost_times_ = false;
};

}  // namespace accelerate::detail
