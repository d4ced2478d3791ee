#include "cli/watch/web/run_json.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <span>

#include "base/text/encoding.h"
#include "cli/runs/figures.h"

namespace accelerate::cli {

namespace {

using detail::JournalJson;
using Point = RunRecord::Point;
namespace journal_kind = detail::journal_kind;

template <class Number>
void append_number(std::string& text, Number value) {
  std::array<char, 32> digits{};
  const auto end = std::to_chars(digits.begin(), digits.end(), value).ptr;
  text.append(digits.data(), end);
}

void append_value(std::string& text, double value) {
  if (std::isfinite(value)) {
    append_number(text, value);
  } else {
    text += "null";
  }
}

// Milliseconds are exact enough, and short.
void append_time(std::string& text, double seconds) {
  append_number(text, std::round(seconds * 1000) / 1000);
}

template <class Append>
std::string list_of(std::span<const Point> points, Append append) {
  std::string text = "[";
  for (const Point& point : points) {
    if (text.size() > 1) text += ',';
    append(text, point);
  }
  return text + "]";
}

std::vector<std::pair<std::string, std::string>> columns_of(
    std::span<const Point> points,
    double begin) {
  return {
      {"steps",
       list_of(
           points,
           [](std::string& text, const Point& point) {
             append_number(text, point.step);
           })},
      {"times",
       list_of(
           points,
           [=](std::string& text, const Point& point) {
             append_time(text, point.time - begin);
           })},
      {"values", list_of(points, [](std::string& text, const Point& point) {
         append_value(text, point.value);
       })}};
}

JournalJson at(const Point* point) {
  if (point == nullptr) return nullptr;
  // As text if JSON has no such number.
  return {
      point->step,
      std::isfinite(point->value) ? JournalJson(point->value)
                                  : JournalJson(short_number(point->value))};
}

JournalJson figures_json(const RunRecord& run) {
  JournalJson figures = JournalJson::object();
  detail::JsonMembers members;
  for (const auto& [name, points] : run.series()) {
    if (points.empty()) continue;
    const Extremes extremes = extremes_of(points);
    const Better better = better_values(name);
    JournalJson& figure = members.of(figures, name);
    figure["count"] = points.size();
    figure["better"] = better == Better::unknown
        ? ""
        : (better == Better::lower ? "lower" : "higher");
    figure["min"] = at(extremes.min);
    figure["max"] = at(extremes.max);
    figure["last"] = at(extremes.last);
  }
  return figures;
}

JournalJson checkpoints_json(const RunRecord& run) {
  JournalJson list = JournalJson::array();
  for (const RunRecord::Event* each : run.checkpoints())
    list.push_back({*each->step, each->time - run.begin(), each->event.name});
  return list;
}

std::size_t num_warnings(const RunRecord& run) {
  return static_cast<std::size_t>(
      std::ranges::count_if(run.events(), [](const auto& each) {
        return each.event.kind == journal_kind::kWarning;
      }));
}

JournalJson
event_json(const RunRecord& run, std::size_t index, bool inline_media) {
  const RunRecord::Event& event = run.events()[index];
  const auto& [kind, name, media_type, body] = event.event;
  JournalJson json = JournalJson::object();
  json["index"] = index;
  json["kind"] = kind;
  json["name"] = name;
  json["step"] = event.step ? JournalJson(*event.step) : JournalJson();
  json["time"] = event.time;
  json["media_type"] = media_type;
  if (media_type.starts_with("image/")) {
    if (inline_media)
      json["address"] = "data:" + media_type + ";base64," +
          detail::base64(run.body_of(event));
  } else if (media_type == detail::media_type::kJson) {
    json["value"] = detail::parse_journal_json(body).value_or(JournalJson());
  } else {
    json["text"] = body;
  }
  return json;
}

}  // namespace

std::string json_object(
    const std::vector<std::pair<std::string, std::string>>& members) {
  std::string text = "{";
  for (const auto& [name, value] : members) {
    if (text.size() > 1) text += ',';
    text += detail::json_text(name) + ":" + value;
  }
  return text + "}";
}

std::string json_list(const std::vector<std::string>& items) {
  std::string text = "[";
  for (const std::string& item : items) {
    if (text.size() > 1) text += ',';
    text += item;
  }
  return text + "]";
}

std::string run_json(const RunRecord& run, std::size_t index) {
  JournalJson json = JournalJson::object();
  json["id"] = index;
  json["name"] = run.name();
  json["directory"] = run.place().directory.string();
  json["begin"] = run.begin();
  json["end"] = run.end();
  const auto step = run.last_step();
  json["step"] = step ? JournalJson(*step) : JournalJson();
  json["damaged"] = run.num_damaged_bytes();
  json["problem"] = run.problem();
  JournalJson& settings = json["settings"] = JournalJson::object();
  detail::JsonMembers members;
  for (const auto& [name, value] : settings_of(run))
    members.of(settings, name) = value;
  JournalJson& sessions = json["sessions"] = JournalJson::array();
  for (const auto& session : run.sessions())
    sessions.push_back({session.begin, session.end});
  json["checkpoints"] = checkpoints_json(run);
  json["warnings"] = num_warnings(run);
  json["figures"] = figures_json(run);
  return detail::json_text(json);
}

std::string curve_json(
    const RunRecord& run,
    const std::string& name,
    const CurveRequest& request) {
  const auto found = run.series().find(name);
  const std::vector<Point> none;
  const std::vector<Point>& points =
      found == run.series().end() ? none : found->second;
  auto members = columns_of(curve_of(points, request), run.begin());
  members.insert(members.begin(), {"count", std::to_string(points.size())});
  return json_object(members);
}

std::string new_points_json(
    const RunRecord& run,
    const std::string& name,
    std::size_t begin) {
  const std::vector<Point>& points = run.series().at(name);
  auto members = columns_of(std::span(points).subspan(begin), run.begin());
  members.insert(members.begin(), {"at", std::to_string(begin)});
  return json_object(members);
}

std::string system_json(const RunRecord& run, std::size_t num_columns) {
  std::vector<std::pair<std::string, std::string>> members;
  CurveRequest request;
  request.num_columns = num_columns;
  for (const auto& [name, points] : run.system())
    members.emplace_back(
        name, json_object(columns_of(curve_of(points, request), run.begin())));
  return json_object(members);
}

std::string ranks_json(const RunRecord& run, std::size_t most) {
  const auto& samples = run.ranks();
  const std::size_t num = std::min(samples.size(), most);
  JournalJson list = JournalJson::array();
  for (std::size_t i = 0; i < num; ++i) {
    const auto& sample = samples[(i + 1) * samples.size() / num - 1];
    JournalJson& json = list.emplace_back(JournalJson::object());
    json["time"] = sample.time;
    JournalJson& ranks = json["ranks"] = JournalJson::array();
    for (const detail::JournalRank& each : sample.ranks)
      ranks.push_back(
          {each.rank, each.step, each.steps_per_second, each.memory_mb});
  }
  return detail::json_text(list);
}

std::string events_json(const RunRecord& run, bool inline_media) {
  JournalJson list = JournalJson::array();
  for (std::size_t i = 0; i < run.events().size(); ++i) {
    const RunRecord::Event& event = run.events()[i];
    if (event.event.kind == journal_kind::kConfig ||
        event.event.kind == journal_kind::kHyperparameters)
      continue;
    list.push_back(event_json(run, i, inline_media));
  }
  return detail::json_text(list);
}

std::string changes_json(
    const WatchedRuns& runs,
    const std::vector<RunChange>& changes) {
  std::vector<std::string> list;
  for (const RunChange& change : changes) {
    const RunRecord& run = *runs.runs()[change.run];
    std::vector<std::pair<std::string, std::string>> figures;
    JournalJson resets = JournalJson::array();
    for (const RunChange::Figure& figure : change.figures) {
      // The page requests a new run's values like any other's.
      if (figure.is_reset || change.is_new) {
        resets.push_back(figure.name);
      } else {
        figures.emplace_back(
            figure.name, new_points_json(run, figure.name, figure.begin));
      }
    }
    const auto truth = [](bool value) { return value ? "true" : "false"; };
    std::vector<std::pair<std::string, std::string>> members{
        {"id", std::to_string(change.run)},
        {"is_new", truth(change.is_new)},
        {"has_events", truth(change.has_events)},
        {"has_system", truth(change.has_system)},
        {"has_ranks", truth(change.has_ranks)},
        {"resets", detail::json_text(resets)},
        {"figures", json_object(figures)}};
    std::string end, step = "null";
    append_time(end, run.end());
    if (const auto last = run.last_step()) step = std::to_string(*last);
    members.emplace_back("end", end);
    members.emplace_back("step", step);
    list.push_back(json_object(members));
  }
  return json_list(list);
}

}  // namespace accelerate::cli
