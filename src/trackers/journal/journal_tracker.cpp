#include "trackers/journal/journal_tracker.h"

#include <cmath>
#include <system_error>
#include <utility>
#include <variant>
#include <vector>

#include "base/text/text.h"
#include "format/journal/journal_kinds.h"
#include "format/journal/journal_reader.h"
#include "trackers/feed/number_buffer.h"
#include "trackers/media/pixels.h"

namespace accelerate::detail {

namespace {

namespace fs = std::filesystem;

void take_along(const std::vector<JournalEntry>& entries, JournalWriter& to) {
  std::vector<std::pair<std::string_view, double>> scalars;
  for (const JournalEntry& entry : entries) {
    if (const auto* event = std::get_if<JournalEvent>(&entry.content)) {
      to.add(*event, entry.step, entry.time);
    } else if (
        const auto* logged = std::get_if<JournalScalars>(&entry.content)) {
      scalars.clear();
      for (const auto& [name, value] : logged->scalars)
        scalars.emplace_back(name, value);
      to.log(scalars, entry.step, entry.time);
    }
  }
}

}  // namespace

fs::path journal_path(const fs::path& directory) {
  return directory / "journal";
}

JournalTracker::JournalTracker(
    fs::path directory,
    std::string description,
    JournalWriterOptions options)
    : directory_(std::move(directory)),
      options_(std::move(options)),
      writer_(std::make_unique<JournalWriter>(
          journal_path(directory_),
          std::move(description),
          options_)) {}

void JournalTracker::store_init_configuration(const TrackedValues& values) {
  writer_->add(values_event(journal_kind::kConfig, values), std::nullopt);
}

void JournalTracker::log(
    const TrackedValues& values,
    const LogTime& time,
    const TrackedValues&) {
  note_not_finite(values, time);
  if (!are_real_numbers(values)) {
    writer_->add(
        values_event(journal_kind::kValues, values), time.step, time.seconds);
    return;
  }
  std::vector<std::pair<std::string_view, double>> scalars;
  scalars.reserve(values.size());
  for (const NamedValue& each : values)
    scalars.emplace_back(each.name, std::get<double>(each.value.content()));
  writer_->log(scalars, time.step, time.seconds);
}

// Once per figure: a loss that is not a number seldom becomes one again.
void JournalTracker::note_not_finite(
    const TrackedValues& values,
    const LogTime& time) {
  for (const NamedValue& each : values) {
    const auto* const number = std::get_if<double>(&each.value.content());
    if (number == nullptr || std::isfinite(*number)) continue;
    if (!not_finite_.insert(each.name).second) continue;
    const std::string since =
        time.step ? format(" since step {}", *time.step) : std::string();
    add(warning_event(format(
            "{} is {}{}", each.name, TrackedValue(*number).str(), since)),
        time);
  }
}

bool JournalTracker::log_item(const TrackedItem& item) {
  if (const auto* images = std::get_if<TrackedImages>(&item.content)) {
    const std::vector<Pixels> all = separate_images(*images);
    for (std::size_t i = 0; i < all.size(); ++i) {
      std::optional<std::size_t> index;
      if (images->layout.starts_with('N')) index = i;
      add(image_event(item.name, index, png_of(all[i])), item.time);
    }
  } else if (const auto* table = std::get_if<TrackedTable>(&item.content)) {
    add(table_event(item.name, *table), item.time);
  } else if (
      const auto* histogram = std::get_if<TrackedHistogram>(&item.content)) {
    add(histogram_event(item.name, *histogram), item.time);
  } else if (const auto* figure = std::get_if<TrackedFigure>(&item.content)) {
    add(figure_event(item.name, figure->svg), item.time);
  } else if (
      const auto* artifact = std::get_if<TrackedArtifact>(&item.content)) {
    writer_->add(
        artifact_event(artifact->path, artifact->directory), std::nullopt);
  } else {
    return GeneralTracker::log_item(item);
  }
  return true;
}

void JournalTracker::add(JournalEvent event, const LogTime& time) {
  writer_->add(std::move(event), time.step, time.seconds);
}

void JournalTracker::sync() { (void)writer_->flush(); }

void JournalTracker::rewind_to(std::int64_t step) { writer_->rewind_to(step); }

void JournalTracker::move_to(
    const fs::path& directory,
    std::string description,
    std::optional<std::int64_t> step) {
  // Throws before anything is changed.
  auto next = std::make_unique<JournalWriter>(
      journal_path(directory), std::move(description), options_);
  if (step) next->rewind_to(*step);
  bool is_written = writer_->flush();
  take_along(JournalReader(journal_path(directory_)).read(), *next);
  is_written &= next->flush();
  writer_ = std::move(next);
  const fs::path previous = std::exchange(directory_, directory);
  if (!is_written) return;  // the old file may have what nothing else has
  std::error_code ignored;
  fs::remove(journal_path(previous), ignored);
  fs::remove(previous, ignored);  // fails if there is anything else
}

}  // namespace accelerate::detail
