#include <algorithm>
#include <any>
#include <array>
#include <cctype>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <accelerate/error.h>

#include "base/text/encoding.h"
#include "base/text/text.h"
#include "format/journal/journal_entry.h"
#include "trackers/feed/feed_item.h"
#include "trackers/files/database.h"
#include "trackers/files/run_files.h"
#include "trackers/keyword_arguments.h"
#include "trackers/media/pixels.h"
#include "trackers/python/python_json.h"
#include "trackers/python/python_tracker.h"
#include "trackers/tracker_request.h"

namespace accelerate::detail {

namespace fs = std::filesystem;

namespace {

// When Trackio opens the file, it adds the tables that are not written here.
constexpr const char* kTrackioTables =
    "CREATE TABLE IF NOT EXISTS metrics (id INTEGER PRIMARY KEY AUTOINCREMENT, "
    "run_id TEXT NOT NULL, timestamp TEXT NOT NULL, run_name TEXT NOT NULL, "
    "step INTEGER NOT NULL, metrics TEXT NOT NULL, log_id TEXT, space_id "
    "TEXT);CREATE INDEX IF NOT EXISTS idx_metrics_run_step ON metrics(run_id, "
    "step);CREATE INDEX IF NOT EXISTS idx_metrics_run_timestamp ON "
    "metrics(run_id, timestamp);CREATE UNIQUE INDEX IF NOT EXISTS "
    "idx_metrics_log_id ON metrics(log_id) WHERE log_id IS NOT NULL;CREATE "
    "INDEX IF NOT EXISTS idx_metrics_pending ON metrics(space_id) WHERE "
    "space_id IS NOT NULL;CREATE TABLE IF NOT EXISTS configs (id INTEGER "
    "PRIMARY KEY AUTOINCREMENT, run_id TEXT NOT NULL, run_name TEXT NOT NULL, "
    "config TEXT NOT NULL, created_at TEXT NOT NULL, UNIQUE(run_id));CREATE "
    "INDEX IF NOT EXISTS idx_configs_run_name ON configs(run_name);";

/// A project's name as Trackio uses it in file names.
std::string trackio_project(std::string_view project) {
  std::string name;
  for (const char letter : project) {
    const auto byte = static_cast<unsigned char>(letter);
    if (byte >= 0x80 || std::isalnum(byte) != 0 || letter == '-' ||
        letter == '_') {
      name += letter;
    }
  }
  return name.empty() ? "default" : name;
}

std::string iso_time(double seconds) {
  const auto whole = static_cast<std::time_t>(std::floor(seconds));
  std::tm parts{};
  ::gmtime_r(&whole, &parts);
  std::array<char, 64> date{};
  std::strftime(date.data(), date.size(), "%Y-%m-%dT%H:%M:%S", &parts);
  std::array<char, 96> text{};
  std::snprintf(
      text.data(),
      text.size(),
      "%s.%06d+00:00",
      date.data(),
      static_cast<int>((seconds - static_cast<double>(whole)) * 1e6));
  return text.data();
}

/// Numbers that JSON lacks become the strings that Trackio reads.
TrackedValue as_trackio_has_it(const TrackedValue& value) {
  if (const auto* const real = std::get_if<double>(&value.content());
      real && !std::isfinite(*real)) {
    if (std::isnan(*real)) return "NaN";
    return *real > 0 ? "Infinity" : "-Infinity";
  }
  if (const auto* const list =
          std::get_if<TrackedValue::List>(&value.content())) {
    TrackedValue::List result;
    for (const TrackedValue& each : *list)
      result.push_back(as_trackio_has_it(each));
    return result;
  }
  if (!value.map()) return value;
  TrackedValues result;
  for (const NamedValue& each : *value.map())
    result.push_back({each.name, as_trackio_has_it(each.value)});
  return result;
}

std::string trackio_json(const TrackedValues& values) {
  return python_json(as_trackio_has_it(values));
}

struct TrackioOptions {
  fs::path directory;
  std::string project;  ///< as files are named after it
  std::string run_name;
  std::string resume;  ///< "never", "allow" or "must"
  TrackedValue group;
  double begin = 0;
  std::shared_ptr<const TrackerPatience> patience;
};

/// Writes the SQLite file and the media that Trackio's dashboard reads.
class TrackioTracker final : public GeneralTracker {
 public:
  explicit TrackioTracker(TrackioOptions options)
      : options_(std::move(options)) {}

  [[nodiscard]] std::string name() const override { return "trackio"; }
  [[nodiscard]] bool main_process_only() const override { return false; }

  void start() override {
    database_ = std::make_unique<Database>(database_path(), options_.patience);
    database_->run(kTrackioTables);
    for (const char* const column : {"run_id", "log_id", "space_id"}) {
      if (database_->has_column("metrics", column)) continue;
      throw ConfigError(format(
          "[trackers] {} is of an earlier version of Trackio (its metrics have "
          "no {}); open it once with a current one",
          database_path().string(),
          column));
    }
    std::optional<std::string> known;
    if (options_.resume != "never") {
      known = database_->text(
          "SELECT run_id FROM configs WHERE run_name = ? ORDER BY id DESC",
          {options_.run_name});
    }
    if (!known && options_.resume == "must") {
      throw ConfigError(format(
          "[trackers] {} has no run \"{}\" to resume; correct trackio's "
          "\"name\", or set \"resume\" to \"allow\"",
          database_path().string(),
          printable(options_.run_name)));
    }
    run_id_ = known.value_or(random_token());
    if (!known) {
      write_config({});
      return;
    }
    const auto last = database_->text(
        "SELECT MAX(step) FROM metrics WHERE run_id = ?", {run_id_});
    next_step_ = last ? step_after(parse_int(*last).value_or(-1)) : 0;
  }
  void store_init_configuration(const TrackedValues& values) override {
    write_config(values);
  }
  void log(
      const TrackedValues& values,
      const LogTime& time,
      const TrackedValues& options) override {
    const KeywordArguments arguments("trackio's log_kwargs", options, {});
    const std::int64_t step = time.step.value_or(next_step_);
    next_step_ = std::max(next_step_, step_after(step));
    waiting_.push_back(
        {iso_time(time.seconds),
         run_id_,
         options_.run_name,
         step,
         trackio_json(values),
         random_token()});
  }
  bool log_item(const TrackedItem& item) override {
    return take_item(*this, item);
  }
  bool take(const TrackedImages& images, const TrackedItem& item) {
    // Trackio shows one image per name and step.
    const std::vector<Pixels> separate = separate_images(images);
    TrackedValues values;
    for (std::size_t i = 0; i < separate.size(); ++i) {
      values.push_back(
          {separate.size() == 1 ? item.name : format("{}/{}", item.name, i),
           write_media(
               "trackio.image", "png", png_of(separate[i]), item.time)});
    }
    log(values, item.time, item.options(name()));
    return true;
  }
  bool take(const TrackedTable& table, const TrackedItem& item) {
    TrackedValue::List rows;
    for (const auto& row : table.rows) {
      TrackedValues cells;
      for (std::size_t i = 0; i < row.size(); ++i)
        cells.push_back({table.columns.at(i), row[i]});
      rows.emplace_back(std::move(cells));
    }
    return log_value(
        item,
        TrackedValues{{"_type", "trackio.table"}, {"_value", std::move(rows)}});
  }
  bool take(const TrackedHistogram& histogram, const TrackedItem& item) {
    const auto list = [](const std::vector<double>& numbers) {
      return TrackedValue::List(numbers.begin(), numbers.end());
    };
    return log_value(
        item,
        TrackedValues{
            {"_type", "trackio.histogram"},
            {"bins", list(histogram.edges)},
            {"values", list(histogram.counts)}});
  }
  bool take(const TrackedFigure& figure, const TrackedItem& item) {
    return log_value(
        item, write_media("trackio.html", "html", figure.svg, item.time));
  }
  void flush() override {
    if (waiting_.empty()) return;
    DatabaseTransaction transaction(*database_);
    for (const DatabaseRow& row : waiting_) {
      database_->query(
          "INSERT OR IGNORE INTO metrics (timestamp, run_id, run_name, step, "
          "metrics, log_id) VALUES (?, ?, ?, ?, ?, ?)",
          row);
    }
    transaction.commit();
    waiting_.clear();
  }
  void finish() override {
    flush();
    database_.reset();
  }
  /// The path of the database, as std::filesystem::path.
  [[nodiscard]] std::any tracker() override { return database_path(); }

 private:
  [[nodiscard]] fs::path database_path() const {
    return options_.directory / (options_.project + ".db");
  }
  bool log_value(const TrackedItem& item, TrackedValue value) {
    log({{item.name, std::move(value)}}, item.time, item.options(name()));
    return true;
  }
  void write_config(TrackedValues values) {
    values.push_back({"_Username", TrackedValue()});
    values.push_back({"_Created", iso_time(options_.begin)});
    values.push_back({"_Group", options_.group});
    database_->query(
        "INSERT OR REPLACE INTO configs (run_id, run_name, config, created_at) "
        "VALUES (?, ?, ?, ?)",
        {run_id_,
         options_.run_name,
         trackio_json(values),
         iso_time(options_.begin)});
  }
  /// Writes a file and returns the value that represents it.
  TrackedValue write_media(
      std::string_view type,
      std::string_view extension,
      std::string_view contents,
      const LogTime& time) {
    const std::string path = format(
        "{}/{}/{}/{}.{}",
        options_.project,
        options_.run_name,
        time.step.value_or(next_step_),
        random_token(),
        extension);
    write_run_file(path_below(options_.directory / "media", path), contents);
    return TrackedValues{
        {"_type", type}, {"file_path", path}, {"caption", TrackedValue()}};
  }

  TrackioOptions options_;
  std::unique_ptr<Database> database_;
  std::string run_id_;
  std::int64_t next_step_ = 0;
  std::vector<DatabaseRow> waiting_;
};

fs::path trackio_directory(const Environment& environment) {
  if (const auto directory = environment.get("TRACKIO_DIR")) return *directory;
  if (const auto home = environment.get("HF_HOME"))
    return fs::path(*home) / "trackio";
  const auto home = environment.get("HOME");
  if (!home) {
    throw ConfigError(
        "[trackers] Trackio's directory is unknown, since HOME is not set; set "
        "TRACKIO_DIR");
  }
  return fs::path(*home) / ".cache/huggingface/trackio";
}

}  // namespace

std::unique_ptr<GeneralTracker> make_trackio(const TrackerRequest& request) {
  constexpr std::string_view kOwn[] = {"name", "group", "resume"};
  const bool needs_python =
      request.environment.has("TRACKIO_SPACE_ID") ||
      request.environment.has("TRACKIO_SERVER_URL") ||
      std::ranges::any_of(request.init_kwargs, [&](const NamedValue& each) {
        return std::ranges::find(kOwn, each.name) == std::end(kOwn);
      });
  // Spaces, servers and system figures are left to the package.
  if (needs_python) return make_python_tracker(request, "trackio");
  const KeywordArguments arguments(
      "trackio's init_kwargs",
      request.init_kwargs,
      {"name", "group", "resume"});
  TrackioOptions options;
  options.directory = trackio_directory(request.environment);
  options.project = trackio_project(request.project_name);
  options.run_name =
      arguments.text("name").value_or("run-" + random_token().substr(0, 8));
  options.resume = arguments.text("resume").value_or("never");
  if (options.resume != "never" && options.resume != "allow" &&
      options.resume != "must") {
    throw ConfigError(format(
        "[trackers] trackio's \"resume\" must be never, allow "
        "or must, but is \"{}\"",
        printable(options.resume)));
  }
  if (const auto group = arguments.text("group")) options.group = *group;
  options.begin = request.begin;
  options.patience = request.patience;
  return std::make_unique<TrackioTracker>(std::move(options));
}

}  // namespace accelerate::detail
