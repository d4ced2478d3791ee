#include "cli/runs/run_record.h"

#include <algorithm>
#include <iterator>
#include <variant>

#include "base/text.h"

namespace accelerate::cli {

namespace {

using detail::JournalEntry;
using detail::JournalEvent;
using detail::JournalJson;
using detail::JournalScalars;
namespace journal_kind = detail::journal_kind;
using Settings = std::vector<std::pair<std::string, std::string>>;

void add_settings(
    const JournalJson& json,
    const std::string& name,
    Settings& settings) {
  if (json.is_object() && !json.empty() && !detail::number_in(json)) {
    for (const auto& item : json.items())
      add_settings(
          item.value(),
          name.empty() ? item.key() : name + "/" + item.key(),
          settings);
    return;
  }
  std::string text =
      json.is_string() ? json.get<std::string>() : detail::json_text(json);
  const auto found =
      std::find_if(settings.begin(), settings.end(), [&](const auto& each) {
        return each.first == name;
      });
  if (found == settings.end()) {
    settings.emplace_back(name, std::move(text));
  } else {
    found->second = std::move(text);
  }
}

// Texts that were logged among other values.
void add_texts(
    const JournalJson& values,
    const JournalEntry& entry,
    std::vector<JournalEntry>& texts) {
  if (!values.is_object()) return;
  for (const auto& item : values.items()) {
    if (!item.value().is_string()) continue;
    texts.push_back(
        {entry.time,
         entry.step,
         detail::text_event(item.key(), item.value().get<std::string>())});
  }
}

}  // namespace

RunRecord::RunRecord(RunPlace place)
    : place_(std::move(place)),
      reader_(std::make_unique<detail::JournalReader>(place_.journal())) {}

bool RunRecord::update() {
  std::vector<JournalEntry> entries = reader_->read();
  if (entries.empty()) return false;
  if (end_ == 0) begin_ = entries.front().time;
  for (const JournalEntry& entry : entries) end_ = std::max(end_, entry.time);
  take_events(entries);
  history_.add(entries);
  return true;
}

// Events that come every few seconds become figures; the bodies are not kept.
void RunRecord::take_events(std::vector<JournalEntry>& entries) {
  std::vector<JournalEntry> texts;
  for (JournalEntry& entry : entries) {
    auto* const event = std::get_if<JournalEvent>(&entry.content);
    if (event == nullptr) continue;
    JournalScalars figures;
    if (event->kind == journal_kind::kValues) {
      const auto json = detail::parse_journal_json(event->body);
      if (json) figures.scalars = detail::figures_of(*json);
      if (json) add_texts(*json, entry, texts);
    } else if (event->kind == journal_kind::kSystem) {
      add_system(entry, event->body);
    } else if (event->kind == journal_kind::kRanks) {
      ranks_.push_back({entry.time, detail::read_ranks(event->body)});
    } else {
      continue;
    }
    entry.content = std::move(figures);
  }
  std::move(texts.begin(), texts.end(), std::back_inserter(entries));
}

void RunRecord::add_system(const JournalEntry& entry, const std::string& body) {
  const auto json = detail::parse_journal_json(body);
  if (!json) return;
  for (const auto& [name, value] : detail::figures_of(*json)) {
    std::vector<Point>& points = system_[name];
    points.push_back(
        {static_cast<std::int64_t>(points.size()), entry.time, value, 0});
  }
}

std::optional<std::int64_t> RunRecord::last_step() const {
  std::optional<std::int64_t> last;
  for (const auto& [name, points] : series()) {
    if (points.empty()) continue;
    last = std::max(last.value_or(points.back().step), points.back().step);
  }
  return last;
}

detail::JournalSessionInfo RunRecord::info() const {
  if (sessions().empty()) return {};
  return detail::read_description(sessions().back().description)
      .value_or(detail::JournalSessionInfo());
}

std::string main_figure_of(const RunRecord& run) {
  std::string best;
  std::size_t best_size = 0;
  bool is_best_loss = false;
  for (const auto& [name, points] : run.series()) {
    const bool is_loss = name.find("loss") != std::string::npos;
    if (std::pair(is_loss, points.size()) <= std::pair(is_best_loss, best_size))
      continue;
    best = name;
    best_size = points.size();
    is_best_loss = is_loss;
  }
  return best;
}

Settings settings_of(const RunRecord& run) {
  Settings settings;
  for (const RunRecord::Event& each : run.events()) {
    if (each.event.kind != journal_kind::kConfig &&
        each.event.kind != journal_kind::kHyperparameters)
      continue;
    const auto json = detail::parse_journal_json(each.event.body);
    if (json && json->is_object()) add_settings(*json, "", settings);
  }
  if (run.sessions().empty()) return settings;
  const detail::JournalSessionInfo info = run.info();
  const auto add = [&](const char* name, const JournalJson& json) {
    if (!json.empty()) add_settings(json, name, settings);
  };
  add("seeds", detail::to_json(info.seeds));
  add("versions", detail::to_json(info.versions));
  add("num_processes", info.num_processes);
  if (!info.host.empty()) add("host", info.host);
  if (!info.command.empty()) add("command", detail::join(info.command, " "));
  return settings;
}

std::vector<std::unique_ptr<RunRecord>> read_runs(
    const std::vector<std::string>& paths) {
  std::vector<std::unique_ptr<RunRecord>> runs;
  for (RunPlace& place : find_runs(paths)) {
    runs.push_back(std::make_unique<RunRecord>(std::move(place)));
    runs.back()->update();
  }
  return runs;
}

}  // namespace accelerate::cli
