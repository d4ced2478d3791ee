#include "cli/trace/merge_traces.h"

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <limits>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include <nlohmann/json.hpp>

#include <accelerate/error.h>

#include "base/files/files.h"
#include "base/text/json_text.h"
#include "base/text/text.h"
#include "format/journal/journal_json.h"

namespace accelerate::cli {

namespace {

namespace fs = std::filesystem;
using detail::format;
using Json = nlohmann::ordered_json;

constexpr std::string_view kPrefix = "profile_";

// A file read by merge_traces(), without its events.
struct Trace {
  fs::path path;
  std::int64_t rank = 0;
  /// The time from which its times count, on rank 0's clock.
  std::int64_t base_ns = 0;
  bool was_compared = false;
};

std::string shown(const fs::path& path) {
  return detail::printable(path.string(), std::string::npos);
}

std::optional<std::int64_t> rank_in_name(const fs::path& path) {
  const std::string name = path.stem().string();
  if (!name.starts_with(kPrefix)) return std::nullopt;
  const auto rank =
      detail::parse_int(std::string_view(name).substr(kPrefix.size()));
  if (!rank || *rank < 0) return std::nullopt;
  return *rank;
}

std::optional<std::int64_t> whole_number(const Json& json, const char* name) {
  const auto found = json.find(name);
  if (found == json.end() || !found->is_number_integer()) return std::nullopt;
  const bool is_beyond = found->is_number_unsigned() &&
      found->get<std::uint64_t>() > std::uint64_t{INT64_MAX};
  if (is_beyond) return std::nullopt;
  return found->get<std::int64_t>();
}

Json read(const fs::path& path) {
  const std::string text =
      detail::read_file(path, std::numeric_limits<std::uint64_t>::max());
  std::optional<Json> parsed = detail::parse_journal_json(text);
  if (!parsed) {
    throw ConfigError(format(
        "{} is not a trace in Chrome's format: it is not JSON, or lists and "
        "objects are nested more than {} deep",
        shown(path),
        detail::kMostJsonDepth));
  }
  Json trace = *std::move(parsed);
  const bool is_list = trace.is_array();
  if (is_list) trace = Json{{"traceEvents", std::move(trace)}};
  const auto events =
      trace.is_object() ? trace.find("traceEvents") : trace.end();
  if (!trace.is_object() || events == trace.end() || !events->is_array()) {
    throw ConfigError(format(
        "{} is not a trace in Chrome's format: it has no list \"traceEvents\"",
        shown(path)));
  }
  return trace;
}

std::int64_t rank_of(const Json& trace, const fs::path& path) {
  const auto info = trace.find("distributedInfo");
  if (info != trace.end() && info->is_object()) {
    if (const auto rank = whole_number(*info, "rank")) return *rank;
  }
  if (const auto rank = rank_in_name(path)) return *rank;
  throw ConfigError(format(
      "{} does not name its rank; call it profile_<rank>.json", shown(path)));
}

Trace head_of(const fs::path& path, const Json& trace) {
  Trace head{.path = path, .rank = rank_of(trace, path)};
  const auto base = whole_number(trace, "baseTimeNanoseconds");
  const auto offset = whole_number(trace, "clockOffsetNanoseconds");
  const bool is_beyond = __builtin_sub_overflow(
      base.value_or(0), offset.value_or(0), &head.base_ns);
  if (is_beyond) {
    throw ConfigError(format(
        "{} must begin at a 64-bit number of nanoseconds of rank 0's clock, "
        "but its base is {} and its offset is {}",
        shown(path),
        base.value_or(0),
        offset.value_or(0)));
  }
  head.was_compared = base.has_value() && offset.has_value();
  return head;
}

// Moves an event to the merged trace's clock and its rank's rows.
void adapt(Json& event, std::int64_t rank, double shift_us) {
  if (!event.is_object()) return;
  const auto time = event.find("ts");
  if (time != event.end() && time->is_number() &&
      event.value("ph", Json()) != "M") {
    *time = time->get<double>() + shift_us;
  }
  // Devices and threads keep their row numbers, which only need to differ
  // between ranks.
  const auto process = event.find("pid");
  if (process != event.end() && process->is_number_integer() &&
      process->get<std::int64_t>() == rank) {
    return;
  }
  if (process != event.end())
    event["tid"] = format(
        "{} {}",
        process->is_string() ? process->get<std::string>() : process->dump(),
        event.value("tid", Json()).dump());
  event["pid"] = rank;
}

// Flows and asynchronous events are matched by numbers that ranks assign
// independently.
void separate_id(Json& event, std::int64_t rank) {
  const auto id = event.is_object() ? event.find("id") : event.end();
  if (!event.is_object() || id == event.end()) return;
  *id = format(
      "{}.{}", rank, id->is_string() ? id->get<std::string>() : id->dump());
}

class MergedFile {
 public:
  explicit MergedFile(const fs::path& path)
      : path_(path),
        temporary_(detail::temporary_sibling(path)),
        stream_(temporary_, std::ios::binary) {
    stream_ << "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[";
  }
  MergedFile(const MergedFile&) = delete;
  MergedFile& operator=(const MergedFile&) = delete;
  ~MergedFile() {
    std::error_code ignored;
    fs::remove(temporary_, ignored);
  }

  void add(const Json& event) {
    stream_ << (num_events_++ == 0 ? "\n" : ",\n")
            << event.dump(-1, ' ', false, Json::error_handler_t::replace);
  }
  std::size_t close() {
    stream_ << "\n]}\n";
    stream_.close();
    if (!stream_) throw Error(format("{} cannot be written", shown(path_)));
    fs::rename(temporary_, path_);
    return num_events_;
  }

 private:
  fs::path path_;
  fs::path temporary_;
  std::ofstream stream_;
  std::size_t num_events_ = 0;
};

std::vector<Trace> heads_of(const std::vector<fs::path>& paths) {
  std::map<std::int64_t, Trace> by_rank;
  for (const fs::path& path : paths) {
    const Trace head = head_of(path, read(path));
    const auto [other, is_new] = by_rank.emplace(head.rank, head);
    if (!is_new) {
      throw ConfigError(format(
          "{} and {} are both from rank {}; merge the traces of one run",
          shown(other->second.path),
          shown(path),
          head.rank));
    }
  }
  std::vector<Trace> heads;
  for (auto& [rank, head] : by_rank) heads.push_back(std::move(head));
  return heads;
}

}  // namespace

std::vector<fs::path> traces_in(const fs::path& directory) {
  std::map<std::int64_t, fs::path> found;
  if (fs::is_directory(directory)) {
    for (const auto& entry : fs::directory_iterator(directory)) {
      if (entry.path().extension() != ".json") continue;
      if (const auto rank = rank_in_name(entry.path()))
        found.emplace(*rank, entry.path());
    }
  }
  if (found.empty()) {
    throw ConfigError(format(
        "{} has no traces profile_<rank>.json; pass the "
        "output_trace_dir of a profile",
        shown(directory)));
  }
  std::vector<fs::path> paths;
  for (auto& [rank, path] : found) paths.push_back(std::move(path));
  return paths;
}

MergedTraces merge_traces(
    const std::vector<fs::path>& paths,
    const fs::path& output) {
  const std::vector<Trace> heads = heads_of(paths);
  MergedTraces merged;
  const auto begin = std::ranges::min_element(heads, {}, &Trace::base_ns);
  MergedFile file(output);
  for (const Trace& head : heads) {
    // One at a time: traces are large.
    Json trace = read(head.path);
    // No base is before the first, so this holds any difference.
    const std::uint64_t shift_ns = static_cast<std::uint64_t>(head.base_ns) -
        static_cast<std::uint64_t>(begin->base_ns);
    const double shift_us = static_cast<double>(shift_ns) / 1000;
    for (Json& event : trace.at("traceEvents")) {
      adapt(event, head.rank, shift_us);
      separate_id(event, head.rank);
      file.add(event);
    }
    if (!head.was_compared && heads.size() > 1) {
      merged.warnings.push_back(format(
          "{} does not relate its clock to rank 0's; it may be shifted against "
          "the others",
          shown(head.path)));
    }
  }
  merged.num_events = file.close();
  return merged;
}

}  // namespace accelerate::cli
