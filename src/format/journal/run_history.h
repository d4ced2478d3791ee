#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
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

  /// Adds entries in journal order; may be called again for later ones.
  void add(const std::vector<JournalEntry>& entries);
  void add(const JournalEntry& entry);
  /// Begins a frame, whose names are numbered from 0 again.
  void begin_frame() { frame_series_.clear(); }
  /// Adds the scalars of the decoder's current entry in that frame.
  void add_scalars(const JournalDecoder& decoder);
  void add_event(Event event);

  /// By name; the points of each series are sorted by step.
  [[nodiscard]] const std::map<std::string, std::vector<Point>>& series()
      const {
    return series_;
  }
  [[nodiscard]] const std::vector<Event>& events() const { return events_; }
  [[nodiscard]] const std::vector<Session>& sessions() const {
    return sessions_;
  }
  /// In the order in which they were discovered. Samples of the system and of
  /// ranks, which have no steps, are dropped if they were taken in one of them.
  [[nodiscard]] const std::vector<LostTime>& lost_times() const {
    return lost_times_;
  }
  /// The last event of that kind and name, or null.
  [[nodiscard]] const Event* last_event(
      std::string_view kind,
      std::string_view name = {}) const;

 private:
  using Points = std::vector<Point>;

  void add_point(
      Points& points,
      std::optional<std::int64_t> step,
      double time,
      double value);
  void drop_repeated(Points& points, std::int64_t step);
  void drop_after(std::int64_t step, double time);
  void note_lost(LostTime lost);
  void pass(double time);

  std::map<std::string, Points> series_;
  std::vector<Points*> frame_series_;  // of the names of the frame
  std::vector<Event> events_;
  std::vector<Session> sessions_;
  std::vector<LostTime> lost_times_;
};

}  // namespace accelerate::detail
