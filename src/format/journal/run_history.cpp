#include "format/journal/run_history.h"

#include <algorithm>
#include <iterator>
#include <variant>

namespace accelerate::detail {

void RunHistory::add(const std::vector<JournalEntry>& entries) {
  for (const JournalEntry& entry : entries) {
    if (const auto* session = std::get_if<JournalSession>(&entry.content)) {
      sessions_.push_back({entry.time, entry.time, session->description});
    } else if (std::holds_alternative<JournalRewind>(entry.content)) {
      if (entry.step) drop_after(*entry.step);
    } else if (const auto* event = std::get_if<JournalEvent>(&entry.content)) {
      events_.push_back({entry.step, entry.time, *event});
    } else {
      add_scalars(entry, std::get<JournalScalars>(entry.content));
    }
    if (!sessions_.empty()) sessions_.back().end = entry.time;
  }
}

void RunHistory::add_scalars(
    const JournalEntry& entry,
    const JournalScalars& scalars) {
  for (const auto& [name, value] : scalars.scalars) {
    std::vector<Point>& points = series_[name];
    const std::int64_t step =
        entry.step.value_or(points.empty() ? 0 : points.back().step + 1);
    add_point(points, {step, entry.time, value, sessions_.size()});
  }
}

// What an earlier process logged for this step and later ones was repeated, or
// will be. Within a process a step may have been skipped before, and a second
// value of a step is the better one.
void RunHistory::add_point(std::vector<Point>& points, const Point& point) {
  while (!points.empty() && points.back().session < point.session &&
         points.back().step >= point.step) {
    points.pop_back();
  }
  auto place = points.end();
  while (place != points.begin() && std::prev(place)->step > point.step)
    --place;
  if (place != points.begin() && std::prev(place)->step == point.step) {
    *std::prev(place) = point;
  } else {
    points.insert(place, point);
  }
}

void RunHistory::drop_after(std::int64_t step) {
  for (auto& [name, points] : series_) {
    while (!points.empty() && points.back().step > step) points.pop_back();
  }
  std::erase_if(events_, [step](const Event& event) {
    return event.step && *event.step > step;
  });
}

const RunHistory::Event* RunHistory::last_event(
    std::string_view kind,
    std::string_view name) const {
  const auto found =
      std::find_if(events_.rbegin(), events_.rend(), [&](const Event& each) {
        return each.event.kind == kind && each.event.name == name;
      });
  return found == events_.rend() ? nullptr : &*found;
}

}  // namespace accelerate::detail
