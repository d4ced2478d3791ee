#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "format/journal/journal_entry.h"

namespace accelerate::detail {

/// What a run did, from the entries of its journal: steps that were repeated
/// after a crash are there once, as they were repeated.
class RunHistory {
 public:
  struct Point {
    std::int64_t step = 0;
    double time = 0;
    double value = 0;
    std::size_t session = 0;  ///< how many processes had begun

    bool operator==(const Point&) const = default;
  };
  struct Event {
    std::optional<std::int64_t> step;
    double time = 0;
    JournalEvent event;
  };
  struct Session {
    double begin = 0;
    double end = 0;  ///< the time of its last entry
    std::string description;
  };

  /// Entries in the order of the journal; may be called again for later ones.
  void add(const std::vector<JournalEntry>& entries);

  /// By name; the points of each in the order of their steps.
  [[nodiscard]] const std::map<std::string, std::vector<Point>>& series()
      const {
    return series_;
  }
  [[nodiscard]] const std::vector<Event>& events() const { return events_; }
  [[nodiscard]] const std::vector<Session>& sessions() const {
    return sessions_;
  }
  /// The last event of that kind and name, or null.
  [[nodiscard]] const Event* last_event(
      std::string_view kind,
      std::string_view name = {}) const;

 private:
  void add_scalars(const JournalEntry& entry, const JournalScalars& scalars);
  static void add_point(std::vector<Point>& points, const Point& point);
  void drop_after(std::int64_t step);

  std::map<std::string, std::vector<Point>> series_;
  std::vector<Event> events_;
  std::vector<Session> sessions_;
};

}  // namespace accelerate::detail
