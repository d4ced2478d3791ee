#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <accelerate/tracker.h>

#include "format/journal/journal_entry.h"
#include "format/journal/journal_json.h"

namespace accelerate::detail {

// The kinds of events in a journal and what their bodies hold, shared by
// writers and readers. Figures logged as plain real numbers are JournalScalars,
// not events.

namespace journal_kind {

// Events whose bodies are JSON objects of named values.
inline constexpr std::string_view kConfig = "config";
inline constexpr std::string_view kHyperparameters = "hyperparameters";
/// Values logged together if any of them is not a plain real number. The
/// numbers among them are figures of that step as well; see figures_of().
inline constexpr std::string_view kValues = "values";
/// Figures of the machine: cpu_percent, process_mb, machine_mb, disk_read_mb,
/// disk_write_mb, network_in_mb, network_out_mb, device.0.memory_mb, ...
inline constexpr std::string_view kSystem = "system";

// Events that have a name.
inline constexpr std::string_view kText = "text";
/// PNG; the fourth image of a batch is called "samples#3".
inline constexpr std::string_view kImage = "image";
inline constexpr std::string_view kTable = "table";
inline constexpr std::string_view kHistogram = "histogram";
inline constexpr std::string_view kFigure = "figure";
/// The name is the path of a file or directory that was kept; the body is its
/// directory in the run, which may be empty.
inline constexpr std::string_view kArtifact = "artifact";
/// The name is the one passed to init_trackers().
inline constexpr std::string_view kProject = "project";
/// The name is the path of the checkpoint.
inline constexpr std::string_view kCheckpoint = "checkpoint";

/// A list of JournalRank.
inline constexpr std::string_view kRanks = "ranks";
inline constexpr std::string_view kWarning = "warning";
/// A table of where a step's time goes.
inline constexpr std::string_view kProfile = "profile";

}  // namespace journal_kind

namespace media_type {

inline constexpr std::string_view kJson = "application/json";
inline constexpr std::string_view kPlainText = "text/plain";
inline constexpr std::string_view kPng = "image/png";
inline constexpr std::string_view kSvg = "image/svg+xml";

}  // namespace media_type

/// The value as JSON. Infinities and NaN, which JSON lacks, become
/// {"__float__": "inf"}; invalid UTF-8 is replaced when the JSON is written.
JournalJson to_json(const TrackedValue& value);
JournalJson to_json(const TrackedValues& values);

/// The number that `json` stands for, as in TrackedValue::number().
std::optional<double> number_in(const JournalJson& json);
/// The numbers and booleans in an object and in objects nested in it, whose
/// names are joined with "/". Lists and texts have none.
std::vector<JournalScalars::Scalar> figures_of(const JournalJson& json);

// Builders of events.

/// `kind`: a kind whose body is an object of named values.
JournalEvent values_event(std::string_view kind, const TrackedValues& values);
JournalEvent text_event(std::string_view name, std::string_view text);
JournalEvent warning_event(std::string_view text);
/// `index`: which image of its batch; unset if it was logged alone.
JournalEvent image_event(
    std::string_view name,
    std::optional<std::size_t> index,
    std::string png);
JournalEvent figure_event(std::string_view name, std::string svg);
JournalEvent table_event(std::string_view name, const TrackedTable& table);
JournalEvent profile_event(const TrackedTable& table);
JournalEvent histogram_event(
    std::string_view name,
    const TrackedHistogram& histogram);
JournalEvent artifact_event(std::string_view path, std::string_view directory);
JournalEvent project_event(std::string_view name);
JournalEvent checkpoint_event(std::string_view path);
JournalEvent system_event(const std::vector<JournalScalars::Scalar>& figures);

/// The progress of one rank.
struct JournalRank {
  std::int64_t rank = 0;
  std::int64_t step = 0;
  double steps_per_second = 0;
  double memory_mb = 0;

  bool operator==(const JournalRank&) const = default;
};

JournalEvent ranks_event(const std::vector<JournalRank>& ranks);

/// A session's description of its process.
struct JournalSessionInfo {
  std::vector<std::string> command = {};
  TrackedValues versions = {};
  TrackedValues seeds = {};
  std::string host = {};
  std::int64_t pid = 0;
  std::int64_t num_processes = 1;
  std::string run = {};
  /// Sizes of the mesh's axes by name.
  TrackedValues mesh = {};

  bool operator==(const JournalSessionInfo&) const = default;
};

std::string to_description(const JournalSessionInfo& info);

// Readers of bodies. They accept untrusted input, and leave out what they
// cannot read.

std::vector<JournalRank> read_ranks(std::string_view body);
/// Nothing if the body is not a histogram.
std::optional<TrackedHistogram> read_histogram(std::string_view body);

// Inline, because the values' constructors belong to the trackers' library,
// which this room does not link.

inline TrackedValue to_tracked_value(const JournalJson& json);

inline TrackedValues to_tracked_values(const JournalJson& json) {
  TrackedValues values;
  if (!json.is_object()) return values;
  for (const auto& item : json.items())
    values.push_back({item.key(), to_tracked_value(item.value())});
  return values;
}

inline TrackedValue to_tracked_value(const JournalJson& json) {
  if (json.is_boolean()) return json.get<bool>();
  // Integers beyond int64 become real numbers.
  if (json.is_number_integer() &&
      (!json.is_number_unsigned() ||
       json.get<std::uint64_t>() <= std::uint64_t{INT64_MAX}))
    return json.get<std::int64_t>();
  if (const auto number = number_in(json)) return *number;
  if (json.is_string()) return json.get<std::string>();
  if (json.is_object()) return to_tracked_values(json);
  if (!json.is_array()) return {};
  TrackedValue::List list;
  for (const JournalJson& each : json) list.push_back(to_tracked_value(each));
  return list;
}

/// The named values of a body; none if it is not an object.
inline TrackedValues read_values(std::string_view body) {
  const auto json = parse_journal_json(body);
  return json ? to_tracked_values(*json) : TrackedValues{};
}

/// Nothing if the body is not a table. Each row has one value per column; a row
/// that is shorter is filled up, unless that would make more values than the
/// body has bytes.
inline std::optional<TrackedTable> read_table(std::string_view body) {
  const auto json = parse_journal_json(body);
  if (!json || !json->is_object()) return std::nullopt;
  const JournalJson columns = json->value("columns", JournalJson::array());
  const JournalJson rows = json->value("rows", JournalJson::array());
  if (!columns.is_array() || !rows.is_array()) return std::nullopt;
  if (!rows.empty() && columns.size() > body.size() / rows.size())
    return std::nullopt;
  TrackedTable table;
  for (const JournalJson& name : columns)
    table.columns.push_back(name.is_string() ? name.get<std::string>() : "");
  for (const JournalJson& row : rows) {
    std::vector<TrackedValue>& values = table.rows.emplace_back();
    for (std::size_t i = 0; row.is_array() && i < row.size(); ++i)
      values.push_back(to_tracked_value(row[i]));
    values.resize(table.columns.size());
  }
  return table;
}

inline std::optional<JournalSessionInfo> read_description(
    std::string_view description) {
  const auto json = parse_journal_json(description);
  if (!json || !json->is_object()) return std::nullopt;
  JournalSessionInfo info;
  const auto text = [&](const char* name) {
    const auto found = json->find(name);
    return found != json->end() && found->is_string()
        ? found->get<std::string>()
        : std::string();
  };
  const auto whole = [&](const char* name, std::int64_t otherwise) {
    const auto found = json->find(name);
    return found != json->end() && found->is_number_integer()
        ? found->get<std::int64_t>()
        : otherwise;
  };
  if (const auto words = json->find("command");
      words != json->end() && words->is_array()) {
    for (const JournalJson& word : *words)
      info.command.push_back(word.is_string() ? word.get<std::string>() : "");
  }
  if (const auto found = json->find("versions"); found != json->end())
    info.versions = to_tracked_values(*found);
  if (const auto found = json->find("seeds"); found != json->end())
    info.seeds = to_tracked_values(*found);
  info.host = text("host");
  info.pid = whole("pid", 0);
  info.num_processes = whole("num_processes", 1);
  info.run = text("run");
  if (const auto found = json->find("mesh"); found != json->end())
    info.mesh = to_tracked_values(*found);
  return info;
}

}  // namespace accelerate::detail
