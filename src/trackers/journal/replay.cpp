#include "trackers/journal/replay.h"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>
#include <variant>

#include "base/text/text.h"
#include "format/journal/journal_kinds.h"
#include "trackers/media/pixels.h"

namespace accelerate::detail {

namespace {

constexpr std::int64_t kNoStep = std::numeric_limits<std::int64_t>::max();

// Determines, from the last entry to the first, which figures are in force.
class InForce {
 public:
  void pass_session() {
    for (const auto& [name, steps] : of_this_session_) {
      std::int64_t& least =
          repeated_from_.try_emplace(name, kNoStep).first->second;
      least = std::min(least, *steps.begin());
    }
    of_this_session_.clear();
  }
  void pass_rewind(std::int64_t step) {
    most_step_ = std::min(most_step_, step);
  }
  [[nodiscard]] bool has(std::optional<std::int64_t> step) const {
    return !step || *step <= most_step_;
  }
  /// Whether a figure counts; later ones replace it.
  bool take(const std::string& name, std::optional<std::int64_t> step) {
    if (!step) return true;
    if (!has(step)) return false;
    const auto repeated = repeated_from_.find(name);
    if (repeated != repeated_from_.end() && *step >= repeated->second)
      return false;
    return of_this_session_[name].insert(*step).second;
  }

 private:
  std::int64_t most_step_ = kNoStep;
  std::map<std::string, std::int64_t> repeated_from_;
  std::map<std::string, std::set<std::int64_t>> of_this_session_;
};

// Collects a configuration; of values with the same name the last one counts.
class ConfigList {
 public:
  explicit ConfigList(TrackedValues& values) : values_(values) {}

  void set(const NamedValue& value) {
    const auto [found, is_new] =
        places_.try_emplace(value.name, values_.size());
    if (is_new) {
      values_.push_back(value);
    } else {
      values_[found->second].value = value.value;
    }
  }

 private:
  TrackedValues& values_;
  std::unordered_map<std::string, std::size_t> places_;
};

TrackedValues values_of(const JournalScalars& scalars) {
  TrackedValues values;
  values.reserve(scalars.scalars.size());
  for (const auto& [name, value] : scalars.scalars)
    values.push_back({name, value});
  return values;
}

// A batch of images is one event per image, named "name#0", "name#1", ...
struct ImageName {
  std::string name;
  std::optional<long long> index;
};

ImageName image_name(const std::string& text) {
  const std::size_t mark = text.rfind('#');
  if (mark == std::string::npos) return {text, std::nullopt};
  const auto index = parse_int(std::string_view(text).substr(mark + 1));
  if (!index) return {text, std::nullopt};
  return {text.substr(0, mark), index};
}

bool append_image(
    std::vector<TrackedItem>& items,
    const ImageName& name,
    const LogTime& time,
    const Pixels& image) {
  if (!name.index || *name.index == 0 || items.empty()) return false;
  TrackedItem& last = items.back();
  auto* const logged = std::get_if<TrackedImages>(&last.content);
  if (!logged || last.name != name.name || last.time.step != time.step)
    return false;
  auto& shape = logged->shape;
  const std::vector<std::int64_t> wanted{
      *name.index, image.height, image.width, image.channels};
  if (shape != wanted) return false;
  ++shape.front();
  logged->values += image.bytes;
  return true;
}

void add_image(
    std::vector<TrackedItem>& items,
    const JournalEvent& event,
    const LogTime& time) {
  const auto image = pixels_of_png(event.body);
  if (!image) return;
  const ImageName name = image_name(event.name);
  if (append_image(items, name, time, *image)) return;
  TrackedImages images;
  images.layout = name.index ? "NHWC" : "HWC";
  images.shape = {image->height, image->width, image->channels};
  if (name.index) images.shape.insert(images.shape.begin(), 1);
  images.values = image->bytes;
  items.push_back({time, std::move(images), name.name});
}

void add_event(
    RecordedRun& run,
    ConfigList& config,
    const JournalEvent& event,
    const LogTime& time) {
  namespace kind = journal_kind;
  const auto add = [&](TrackedItem::Content content, std::string name = {}) {
    run.items.push_back({time, std::move(content), std::move(name)});
  };
  if (event.kind == kind::kProject) {
    run.project = event.name;
  } else if (
      event.kind == kind::kConfig || event.kind == kind::kHyperparameters) {
    for (const NamedValue& each : read_values(event.body)) config.set(each);
  } else if (event.kind == kind::kText) {
    add(TrackedValues{{event.name, event.body}});
  } else if (event.kind == kind::kImage) {
    add_image(run.items, event, time);
  } else if (event.kind == kind::kFigure) {
    add(TrackedFigure{event.body}, event.name);
  } else if (event.kind == kind::kArtifact) {
    add(TrackedArtifact{event.name, event.body});
  } else if (event.kind == kind::kTable) {
    if (auto table = read_table(event.body)) add(std::move(*table), event.name);
  } else if (event.kind == kind::kHistogram) {
    if (auto histogram = read_histogram(event.body))
      add(std::move(*histogram), event.name);
  }
}

// The values that an entry logged, if any.
std::optional<TrackedValues> logged_values(const JournalEntry& entry) {
  if (const auto* scalars = std::get_if<JournalScalars>(&entry.content))
    return values_of(*scalars);
  const auto* const event = std::get_if<JournalEvent>(&entry.content);
  if (event && event->kind == journal_kind::kValues)
    return read_values(event->body);
  return std::nullopt;
}

// Values in force by index of their entry, nothing for other entries, and
// whether an entry's event is in force.
struct Survivors {
  std::vector<std::optional<TrackedValues>> values;
  std::vector<bool> has_event;
};

Survivors survivors_of(const std::vector<JournalEntry>& entries) {
  Survivors survivors{
      std::vector<std::optional<TrackedValues>>(entries.size()),
      std::vector<bool>(entries.size())};
  InForce in_force;
  for (std::size_t i = entries.size(); i-- > 0;) {
    const JournalEntry& entry = entries[i];
    if (std::holds_alternative<JournalSession>(entry.content)) {
      in_force.pass_session();
    } else if (std::holds_alternative<JournalRewind>(entry.content)) {
      if (entry.step) in_force.pass_rewind(*entry.step);
    } else if (auto values = logged_values(entry)) {
      std::erase_if(*values, [&](const NamedValue& each) {
        return !in_force.take(each.name, entry.step);
      });
      survivors.values[i] = std::move(values);
    } else {
      survivors.has_event[i] = in_force.has(entry.step);
    }
  }
  return survivors;
}

}  // namespace

RecordedRun recorded_run(const std::vector<JournalEntry>& entries) {
  Survivors survivors = survivors_of(entries);
  RecordedRun run;
  ConfigList config(run.config);
  if (!entries.empty()) run.begin = entries.front().time;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const JournalEntry& entry = entries[i];
    const LogTime time{entry.step, entry.time};
    if (auto& values = survivors.values[i]) {
      if (!values->empty()) run.items.push_back({time, std::move(*values)});
    } else if (survivors.has_event[i]) {
      add_event(run, config, std::get<JournalEvent>(entry.content), time);
    }
  }
  return run;
}

}  // namespace accelerate::detail
