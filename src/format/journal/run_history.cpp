#include "format/journal/run_history.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>
#include <variant>

#include "format/journal/journal_kinds.h"

namespace accelerate::detail {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

}  // namespace

void RunHistory::add(const std::vector<JournalEntry>& entries) {
  for (const JournalEntry& entry : entries) add(entry);
}

void RunHistory::add(const JournalEntry& entry) {
  if (const auto* session = std::get_if<JournalSession>(&entry.content)) {
    sessions_.push_back({entry.time, entry.time, session->description});
  } else if (std::holds_alternative<JournalRewind>(entry.content)) {
    if (entry.step) drop_after(*entry.step, entry.time);
  } else if (const auto* event = std::get_if<JournalEvent>(&entry.content)) {
    add_event({entry.step, entry.time, *event, std::nullopt});
  } else {
    for (const auto& [name, value] :
         std::get<JournalScalars>(entry.content).scalars)
      add_point(series_[name], entry.step, entry.time, value);
  }
  pass(entry.time);
}

void RunHistory::add_scalars(const JournalDecoder& decoder) {
  const auto& names = decoder.names();
  while (frame_series_.size() < names.size())
    frame_series_.push_back(&series_[std::string(names[frame_series_.size()])]);
  for (const auto& [name, value] : decoder.scalars())
    add_point(*frame_series_[name], decoder.step(), decoder.time(), value);
  pass(decoder.time());
}

void RunHistory::add_event(Event event) {
  pass(event.time);
  events_.push_back(std::move(event));
}

void RunHistory::pass(double time) {
  if (!sessions_.empty()) sessions_.back().end = time;
}

void RunHistory::add_point(
    Points& points,
    std::optional<std::int64_t> step,
    double time,
    double value) {
  const Point point{
      step.value_or(points.empty() ? 0 : points.back().step + 1),
      time,
      value,
      sessions_.size()};
  if (points.empty() || points.back().step < point.step) {
    points.push_back(point);
    return;
  }
  drop_repeated(points, point.step);
  auto place = points.end();
  while (place != points.begin() && std::prev(place)->step > point.step)
    --place;
  if (place != points.begin() && std::prev(place)->step == point.step) {
    *std::prev(place) = point;
  } else {
    points.insert(place, point);
  }
}

// What an earlier process logged for this step and later ones was repeated, or
// will be. Within a process an earlier step may have been skipped, and the
// second value for a step is the better one.
void RunHistory::drop_repeated(Points& points, std::int64_t step) {
  double begin = kInfinity;
  while (!points.empty() && points.back().session < sessions_.size() &&
         points.back().step >= step) {
    begin = std::min(begin, points.back().time);
    points.pop_back();
  }
  if (begin < kInfinity) note_lost({begin, sessions_.back().begin});
}

// The work of later steps was lost when this process began or, if this process
// did it, now.
void RunHistory::drop_after(std::int64_t step, double time) {
  LostTime lost{kInfinity, sessions_.empty() ? time : sessions_.back().begin};
  const auto note = [&](double of_step) {
    lost.begin = std::min(lost.begin, of_step);
    if (of_step >= lost.end) lost.end = time;
  };
  for (auto& [name, points] : series_) {
    for (; !points.empty() && points.back().step > step; points.pop_back())
      note(points.back().time);
  }
  std::erase_if(events_, [&](const Event& event) {
    const bool is_later = event.step && *event.step > step;
    if (is_later) note(event.time);
    return is_later;
  });
  if (lost.begin < kInfinity) note_lost(lost);
}

void RunHistory::note_lost(LostTime lost) {
  if (!lost_times_.empty() && lost_times_.back().end == lost.end) {
    lost.begin = std::min(lost.begin, lost_times_.back().begin);
    if (lost == lost_times_.back()) return;
    lost_times_.back() = lost;
  } else {
    lost_times_.push_back(lost);
  }
  std::erase_if(events_, [&](const Event& each) {
    const std::string& kind = each.event.kind;
    return (kind == journal_kind::kSystem || kind == journal_kind::kRanks) &&
        lost.has(each.time);
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
