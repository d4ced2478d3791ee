#include "format/journal/run_history.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <variant>

#include "format/journal/journal_kinds.h"

namespace accelerate::detail {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

}  // namespace

void RunHistory::add(const std::vector<JournalEntry>& entries) {
  for (const JournalEntry& entry : entries) add(entry);
  settle();
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
         std::get<JournalScalars>(entry.content).scalars) {
      Points& points = series_[name];
      touch(points);
      add_point(points, entry.step, entry.time, value);
    }
  }
  pass(entry.time);
}

void RunHistory::add_scalars(const JournalDecoder& decoder) {
  const auto& names = decoder.names();
  while (frame_series_.size() < names.size()) {
    const std::string name(names[frame_series_.size()]);
    frame_series_.push_back({&series_[name], 0});
  }
  for (const auto& [name, value] : decoder.scalars()) {
    FrameSeries& series = frame_series_[name];
    if (series.epoch != epoch_) touch(*series.points);
    series.epoch = epoch_;
    add_point(*series.points, decoder.step(), decoder.time(), value);
  }
  pass(decoder.time());
}

void RunHistory::add_event(Event event) {
  pass(event.time);
  const std::string& kind = event.event.kind;
  has_samples_ = has_samples_ || kind == journal_kind::kSystem ||
      kind == journal_kind::kRanks;
  events_.push_back(std::move(event));
  if (const auto step = events_.back().step) {
    event_steps_.emplace_back(*step, events_.size() - 1);
    std::push_heap(event_steps_.begin(), event_steps_.end());
  }
}

// Notes that the series gets points in this epoch.
void RunHistory::touch(Points& points) {
  if (std::exchange(states_[&points].epoch, epoch_) != epoch_)
    touched_.push_back(&points);
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
      step.value_or(points.empty() ? 0 : step_after(points.back().step)),
      time,
      value,
      sessions_.size()};
  if (points.empty() || points.back().step < point.step) {
    points.push_back(point);
    return;
  }
  drop_repeated(points, point.step);
  if (points.empty() || points.back().step < point.step) {
    points.push_back(point);
    return;
  }
  const auto place = std::lower_bound(
      points.begin(),
      points.end(),
      point.step,
      [](const Point& each, std::int64_t wanted) {
        return each.step < wanted;
      });
  if (place->step == point.step) {
    *place = point;
    return;
  }
  auto& late = states_[&points].late;
  if (late.empty()) with_late_points_.push_back(&points);
  late.insert_or_assign(point.step, point);
}

// Removes the point with the greatest step.
void RunHistory::drop_last(Points& points) {
  points.pop_back();
  if (with_late_points_.empty()) return;
  auto& late = states_[&points].late;
  if (late.empty()) return;
  const auto last = std::prev(late.end());
  if (!points.empty() && points.back().step > last->first) return;
  points.push_back(last->second);
  late.erase(last);
}

// Entries of an earlier process for this step and later ones were repeated, or
// will be. Within a process an earlier step may have been skipped, and the
// second value for a step is the better one.
void RunHistory::drop_repeated(Points& points, std::int64_t step) {
  double begin = kInfinity;
  while (!points.empty() && points.back().session < sessions_.size() &&
         points.back().step >= step) {
    begin = std::min(begin, points.back().time);
    drop_last(points);
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
  list_touched();
  while (!by_last_step_.empty()) {
    const auto last = std::prev(by_last_step_.end());
    if (last->first <= step) break;
    Points& points = *last->second;
    by_last_step_.erase(last);
    for (; !points.empty() && points.back().step > step; drop_last(points))
      note(points.back().time);
    auto& listed = states_[&points].listed_step;
    listed.reset();
    if (points.empty()) continue;
    listed = points.back().step;
    by_last_step_.emplace(*listed, &points);
  }
  while (!event_steps_.empty() && event_steps_.front().first > step) {
    const std::size_t index = event_steps_.front().second;
    note(events_[index].time);
    void_events_.push_back(index);
    std::pop_heap(event_steps_.begin(), event_steps_.end());
    event_steps_.pop_back();
  }
  if (lost.begin < kInfinity) note_lost(lost);
}

// Begins an epoch.
void RunHistory::list_touched() {
  for (Points* const points : touched_) {
    auto& listed = states_[points].listed_step;
    if (listed) by_last_step_.erase({*listed, points});
    listed.reset();
    if (points->empty()) continue;
    listed = points->back().step;
    by_last_step_.emplace(*listed, points);
  }
  touched_.clear();
  ++epoch_;
}

void RunHistory::note_lost(LostTime lost) {
  if (!lost_times_.empty() && lost_times_.back().end == lost.end) {
    lost.begin = std::min(lost.begin, lost_times_.back().begin);
    if (lost == lost_times_.back()) return;
    lost_times_.back() = lost;
  } else {
    lost_times_.push_back(lost);
  }
  has_new_lost_times_ = true;
}

void RunHistory::settle() {
  merge_late_points();
  merge_lost_times();
  remove_void_events();
  has_new_lost_times_ = false;
}

void RunHistory::merge_late_points() {
  for (Points* const points : with_late_points_) {
    auto& late = states_[points].late;
    const auto middle = static_cast<std::ptrdiff_t>(points->size());
    for (const auto& [step, point] : late) points->push_back(point);
    late.clear();
    std::inplace_merge(
        points->begin(),
        points->begin() + middle,
        points->end(),
        [](const Point& one, const Point& other) {
          return one.step < other.step;
        });
  }
  with_late_points_.clear();
}

void RunHistory::merge_lost_times() {
  if (!has_new_lost_times_) return;
  std::vector<LostTime> sorted = lost_times_;
  // Times come from files, and need not be numbers.
  std::erase_if(
      sorted, [](const LostTime& each) { return !(each.begin < each.end); });
  std::ranges::sort(sorted, {}, &LostTime::begin);
  merged_times_.clear();
  for (const LostTime& each : sorted) {
    if (merged_times_.empty() || merged_times_.back().end < each.begin) {
      merged_times_.push_back(each);
    } else {
      merged_times_.back().end = std::max(merged_times_.back().end, each.end);
    }
  }
}

bool RunHistory::has_lost(double time) const {
  const auto after = std::partition_point(
      merged_times_.begin(), merged_times_.end(), [&](const LostTime& each) {
        return each.begin <= time;
      });
  return after != merged_times_.begin() && std::prev(after)->has(time);
}

void RunHistory::remove_void_events() {
  const bool has_lost_samples = has_samples_ && has_new_lost_times_;
  if (void_events_.empty() && !has_lost_samples) return;
  std::vector<bool> is_void(events_.size());
  for (const std::size_t index : void_events_) is_void[index] = true;
  bool has_any = !void_events_.empty();
  void_events_.clear();
  if (has_lost_samples) {
    for (std::size_t i = 0; i < events_.size(); ++i) {
      const std::string& kind = events_[i].event.kind;
      const bool is_sample =
          kind == journal_kind::kSystem || kind == journal_kind::kRanks;
      if (!is_sample || !has_lost(events_[i].time)) continue;
      is_void[i] = has_any = true;
    }
  }
  if (!has_any) return;
  std::size_t num_kept = 0;
  event_steps_.clear();
  for (std::size_t i = 0; i < events_.size(); ++i) {
    if (is_void[i]) continue;
    if (i != num_kept) events_[num_kept] = std::move(events_[i]);
    if (const auto step = events_[num_kept].step)
      event_steps_.emplace_back(*step, num_kept);
    ++num_kept;
  }
  events_.resize(num_kept);
  std::make_heap(event_steps_.begin(), event_steps_.end());
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
