#include "cli/runs/run_record.h"

#include <algorithm>
#include <exception>
#include <unordered_map>

#include "base/text/text.h"

namespace accelerate::cli {

namespace {

using detail::JournalDecoder;
using detail::JournalJson;
namespace journal_kind = detail::journal_kind;
using Settings = std::vector<std::pair<std::string, std::string>>;

// Collects settings; of those with the same name the last one counts.
class SettingsList {
 public:
  void add(const JournalJson& json, const std::string& name) {
    if (json.is_object() && !json.empty() && !detail::number_in(json)) {
      for (const auto& item : json.items())
        add(item.value(), name.empty() ? item.key() : name + "/" + item.key());
      return;
    }
    std::string text =
        json.is_string() ? json.get<std::string>() : detail::json_text(json);
    const auto [found, is_new] = places_.try_emplace(name, settings_.size());
    if (is_new) {
      settings_.emplace_back(name, std::move(text));
    } else {
      settings_[found->second].second = std::move(text);
    }
  }
  Settings take() { return std::move(settings_); }

 private:
  Settings settings_;
  std::unordered_map<std::string, std::size_t> places_;
};

}  // namespace

RunRecord::RunRecord(RunPlace place)
    : place_(std::move(place)),
      reader_(std::make_unique<detail::JournalReader>(place_.journal())) {}

bool RunRecord::update(std::uint64_t most_bytes) {
  bool has_changed = false;
  const auto take = [&](JournalDecoder& entries, std::uint64_t payload) {
    history_.begin_frame();
    while (entries.next()) {
      has_changed = true;
      take_entry(entries, payload);
    }
  };
  has_more_ = false;
  try {
    has_more_ = reader_->read(take, most_bytes);
  } catch (...) {
    history_.settle();
    throw;
  }
  history_.settle();
  drop_lost_samples();
  return has_changed;
}

void RunRecord::take_entry(const JournalDecoder& entry, std::uint64_t payload) {
  if (!has_any_) begin_ = entry.time();
  end_ = has_any_ ? std::max(end_, entry.time()) : entry.time();
  has_any_ = true;
  switch (entry.kind()) {
    case JournalDecoder::Kind::scalars:
      history_.add_scalars(entry);
      break;
    case JournalDecoder::Kind::event:
      take_event(entry, payload);
      break;
    case JournalDecoder::Kind::session:
    case JournalDecoder::Kind::rewind:
      history_.add(entry.entry());
      break;
  }
}

// Events that arrive every few seconds become figures. Their bodies are not
// kept, nor are those of pictures, which may exceed memory.
void RunRecord::take_event(const JournalDecoder& entry, std::uint64_t payload) {
  const auto& [kind, name, media_type, body] = entry.event();
  if (kind == journal_kind::kValues) {
    take_values(entry);
  } else if (kind == journal_kind::kSystem) {
    add_system(entry.time(), body);
  } else if (kind == journal_kind::kRanks) {
    ranks_.push_back({entry.time(), detail::read_ranks(body)});
  } else {
    const bool is_picture = media_type.starts_with("image/");
    Event event{
        entry.step(),
        entry.time(),
        {std::string(kind),
         std::string(name),
         std::string(media_type),
         is_picture ? "" : std::string(body)},
        std::nullopt};
    if (is_picture) event.body = {payload + entry.body_offset(), body.size()};
    history_.add_event(std::move(event));
  }
}

// Numbers become figures, texts become separate events.
void RunRecord::take_values(const JournalDecoder& entry) {
  const auto json = detail::parse_journal_json(entry.event().body);
  if (!json || !json->is_object()) return;
  history_.add(
      {entry.time(),
       entry.step(),
       detail::JournalScalars{detail::figures_of(*json)}});
  for (const auto& item : json->items()) {
    if (!item.value().is_string()) continue;
    history_.add(
        {entry.time(),
         entry.step(),
         detail::text_event(item.key(), item.value().get<std::string>())});
  }
}

void RunRecord::add_system(double time, std::string_view body) {
  const auto json = detail::parse_journal_json(body);
  if (!json) return;
  for (const auto& [name, value] : detail::figures_of(*json)) {
    std::vector<Point>& points = system_[name];
    points.push_back(
        {static_cast<std::int64_t>(points.size()), time, value, 0});
  }
}

// A run that continued from an older checkpoint shows the machine and the ranks
// as they were while its current steps were made.
void RunRecord::drop_lost_samples() {
  if (history_.lost_times() == dropped_) return;
  dropped_ = history_.lost_times();
  const auto is_lost = [this](const auto& sample) {
    return history_.has_lost(sample.time);
  };
  std::erase_if(ranks_, is_lost);
  for (auto& [name, points] : system_) {
    std::erase_if(points, is_lost);
    for (std::size_t i = 0; i < points.size(); ++i)
      points[i].step = static_cast<std::int64_t>(i);
  }
}

double RunRecord::duration() const {
  if (sessions().empty()) return end_ - begin_;
  // Entries logged before the first process reported its beginning count as
  // well.
  double seconds = std::max(sessions().front().begin - begin_, 0.0);
  for (const auto& session : sessions())
    seconds += std::max(session.end - session.begin, 0.0);
  return seconds;
}

std::string RunRecord::body_of(const Event& event) const {
  return event.body
      ? reader_->read_bytes(event.body->offset, event.body->num_bytes)
      : event.event.body;
}

std::vector<const RunRecord::Event*> RunRecord::checkpoints() const {
  std::vector<const Event*> found;
  for (const Event& event : events()) {
    if (event.event.kind == journal_kind::kCheckpoint && event.step)
      found.push_back(&event);
  }
  std::ranges::stable_sort(found, [](const Event* one, const Event* other) {
    return *one->step < *other->step;
  });
  return found;
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
  SettingsList settings;
  for (const RunRecord::Event& each : run.events()) {
    if (each.event.kind != journal_kind::kConfig &&
        each.event.kind != journal_kind::kHyperparameters)
      continue;
    const auto json = detail::parse_journal_json(each.event.body);
    if (json && json->is_object()) settings.add(*json, "");
  }
  if (run.sessions().empty()) return settings.take();
  const detail::JournalSessionInfo info = run.info();
  const auto add = [&](const char* name, const JournalJson& json) {
    if (!json.empty()) settings.add(json, name);
  };
  add("seeds", detail::to_json(info.seeds));
  add("versions", detail::to_json(info.versions));
  add("num_processes", info.num_processes);
  if (!info.host.empty()) add("host", info.host);
  if (!info.command.empty()) add("command", detail::join(info.command, " "));
  return settings.take();
}

std::vector<std::unique_ptr<RunRecord>> read_runs(
    const std::vector<std::string>& paths,
    const std::function<void(const std::string&)>& warn) {
  std::vector<std::unique_ptr<RunRecord>> runs;
  std::vector<RunPlace> places = find_runs(paths);
  const std::size_t num_places = places.size();
  for (RunPlace& place : places) {
    const std::string name = place.name;
    try {
      auto run = std::make_unique<RunRecord>(std::move(place));
      run->update();
      runs.push_back(std::move(run));
    } catch (const std::exception& error) {
      if (num_places == 1) throw;
      warn(detail::format("{} is left out: {}", name, error.what()));
    }
  }
  return runs;
}

}  // namespace accelerate::cli
