#include "cli/runs/run_export.h"

#include "cli/runs/figures.h"

namespace accelerate::cli {

namespace {

using detail::JournalJson;

std::string csv_field(const std::string& text) {
  if (text.find_first_of("\",\n\r") == std::string::npos) return text;
  std::string field = "\"";
  for (const char c : text) {
    field += c;
    if (c == '"') field += c;
  }
  return field + "\"";
}

JournalJson to_json(const RunRecord::Series& series) {
  JournalJson json = JournalJson::object();
  detail::JsonMembers members;
  for (const auto& [name, points] : series) {
    JournalJson steps = JournalJson::array();
    JournalJson times = JournalJson::array();
    JournalJson values = JournalJson::array();
    for (const RunRecord::Point& point : points) {
      steps.push_back(point.step);
      times.push_back(point.time);
      values.push_back(point.value);
    }
    JournalJson& all = members.of(json, name);
    all["step"] = std::move(steps);
    all["time"] = std::move(times);
    all["value"] = std::move(values);
  }
  return json;
}

JournalJson to_json(const RunRecord::Event& event) {
  JournalJson json = JournalJson::object();
  json["kind"] = event.event.kind;
  json["name"] = event.event.name;
  json["step"] = event.step ? JournalJson(*event.step) : JournalJson();
  json["time"] = event.time;
  json["media_type"] = event.event.media_type;
  if (event.event.media_type.starts_with("image/")) {
    json["num_bytes"] =
        event.body ? event.body->num_bytes : event.event.body.size();
  } else if (event.event.media_type == detail::media_type::kJson) {
    json["value"] =
        detail::parse_journal_json(event.event.body).value_or(JournalJson());
  } else {
    json["text"] = event.event.body;
  }
  return json;
}

JournalJson to_json(const RunRecord& run) {
  JournalJson json = JournalJson::object();
  json["name"] = run.name();
  json["directory"] = run.place().directory.string();
  JournalJson& settings = json["settings"] = JournalJson::object();
  detail::JsonMembers members;
  for (const auto& [name, value] : settings_of(run))
    members.of(settings, name) = value;
  JournalJson& sessions = json["sessions"] = JournalJson::array();
  for (const auto& session : run.sessions()) {
    JournalJson& each = sessions.emplace_back(JournalJson::object());
    each["begin"] = session.begin;
    each["end"] = session.end;
    each["description"] = detail::parse_journal_json(session.description)
                              .value_or(JournalJson(session.description));
  }
  json["series"] = to_json(run.series());
  json["system"] = to_json(run.system());
  JournalJson& ranks = json["ranks"] = JournalJson::array();
  for (const RunRecord::RankSample& sample : run.ranks()) {
    JournalJson& each = ranks.emplace_back(JournalJson::object());
    each["time"] = sample.time;
    each["ranks"] =
        detail::parse_journal_json(detail::ranks_event(sample.ranks).body)
            .value_or(JournalJson::array());
  }
  JournalJson& events = json["events"] = JournalJson::array();
  for (const RunRecord::Event& event : run.events())
    events.push_back(to_json(event));
  return json;
}

}  // namespace

std::string to_csv(const std::vector<std::unique_ptr<RunRecord>>& runs) {
  std::string text = "run,name,step,time,value\n";
  for (const auto& run : runs) {
    const std::string run_field = csv_field(run->name());
    for (const auto& [name, points] : run->series()) {
      const std::string begin = run_field + "," + csv_field(name) + ",";
      for (const RunRecord::Point& point : points) {
        text += begin;
        text += std::to_string(point.step);
        text += ',';
        text += exact_number(point.time);
        text += ',';
        text += exact_number(point.value);
        text += '\n';
      }
    }
  }
  return text;
}

std::string to_export_json(
    const std::vector<std::unique_ptr<RunRecord>>& runs) {
  JournalJson list = JournalJson::array();
  for (const auto& run : runs) list.push_back(to_json(*run));
  return list.dump(1, ' ', false, JournalJson::error_handler_t::replace) + "\n";
}

}  // namespace accelerate::cli
