#include "format/journal/journal_kinds.h"

#include <cmath>
#include <type_traits>
#include <utility>

#include "base/text/text.h"

namespace accelerate::detail {

namespace {

constexpr const char* kFloat = "__float__";

JournalJson to_json(double value) {
  if (std::isfinite(value)) return value;
  const char* const name =
      std::isnan(value) ? "nan" : (value > 0 ? "inf" : "-inf");
  return JournalJson{{kFloat, name}};
}

JournalEvent json_event(
    std::string_view kind,
    std::string_view name,
    const JournalJson& body) {
  return {
      std::string(kind),
      std::string(name),
      std::string(media_type::kJson),
      json_text(body)};
}

JournalJson to_json(const std::vector<double>& values) {
  JournalJson list = JournalJson::array();
  for (const double value : values) list.push_back(to_json(value));
  return list;
}

JournalJson to_json(const TrackedTable& table) {
  JournalJson rows = JournalJson::array();
  for (const auto& row : table.rows) {
    JournalJson& values = rows.emplace_back(JournalJson::array());
    for (const TrackedValue& value : row)
      values.push_back(detail::to_json(value));
  }
  JournalJson json = JournalJson::object();
  json["columns"] = table.columns;
  json["rows"] = std::move(rows);
  return json;
}

void add_figures(
    const JournalJson& json,
    const std::string& prefix,
    std::vector<JournalScalars::Scalar>& figures) {
  for (const auto& item : json.items()) {
    const std::string name =
        prefix.empty() ? item.key() : prefix + "/" + item.key();
    if (const auto number = number_in(item.value())) {
      figures.push_back({name, *number});
    } else if (item.value().is_object()) {
      add_figures(item.value(), name, figures);
    }
  }
}

// The number under that name in an object; 0 if there is none.
double number_at(const JournalJson& json, const char* name) {
  const auto found = json.find(name);
  return found == json.end() ? 0 : number_in(*found).value_or(0);
}

std::int64_t whole_at(const JournalJson& json, const char* name) {
  const auto found = json.find(name);
  return found != json.end() && found->is_number_integer()
      ? found->get<std::int64_t>()
      : 0;
}

// Nothing if it is not a list of numbers.
std::optional<std::vector<double>> numbers_at(
    const JournalJson& json,
    const char* name) {
  const auto found = json.find(name);
  if (found == json.end() || !found->is_array()) return std::nullopt;
  std::vector<double> numbers;
  for (const JournalJson& each : *found) {
    const auto number = number_in(each);
    if (!number) return std::nullopt;
    numbers.push_back(*number);
  }
  return numbers;
}

}  // namespace

JournalJson to_json(const TrackedValue& value) {
  return std::visit(
      [](const auto& content) -> JournalJson {
        using Content = std::decay_t<decltype(content)>;
        if constexpr (std::is_same_v<Content, std::monostate>) {
          return nullptr;
        } else if constexpr (std::is_same_v<Content, double>) {
          return to_json(content);
        } else if constexpr (std::is_same_v<Content, TrackedValue::List>) {
          JournalJson list = JournalJson::array();
          for (const TrackedValue& each : content)
            list.push_back(detail::to_json(each));
          return list;
        } else if constexpr (std::is_same_v<Content, TrackedValue::Map>) {
          return detail::to_json(content);
        } else {
          return content;
        }
      },
      value.content());
}

JournalJson to_json(const TrackedValues& values) {
  JournalJson json = JournalJson::object();
  JsonMembers members;
  for (const NamedValue& each : values)
    members.of(json, each.name) = detail::to_json(each.value);
  return json;
}

std::optional<double> number_in(const JournalJson& json) {
  if (json.is_boolean()) return json.get<bool>() ? 1.0 : 0.0;
  if (json.is_number()) return json.get<double>();
  if (!json.is_object() || json.size() != 1 || !json.contains(kFloat))
    return std::nullopt;
  const JournalJson& name = json[kFloat];
  return name.is_string() ? parse_double(name.get<std::string>())
                          : std::nullopt;
}

std::vector<JournalScalars::Scalar> figures_of(const JournalJson& json) {
  std::vector<JournalScalars::Scalar> figures;
  if (json.is_object()) add_figures(json, "", figures);
  return figures;
}

JournalEvent values_event(std::string_view kind, const TrackedValues& values) {
  return json_event(kind, "", to_json(values));
}

JournalEvent text_event(std::string_view name, std::string_view text) {
  return {
      std::string(journal_kind::kText),
      std::string(name),
      std::string(media_type::kPlainText),
      std::string(text)};
}

JournalEvent warning_event(std::string_view text) {
  return {
      std::string(journal_kind::kWarning),
      "",
      std::string(media_type::kPlainText),
      std::string(text)};
}

JournalEvent image_event(
    std::string_view name,
    std::optional<std::size_t> index,
    std::string png) {
  return {
      std::string(journal_kind::kImage),
      index ? format("{}#{}", name, *index) : std::string(name),
      std::string(media_type::kPng),
      std::move(png)};
}

JournalEvent figure_event(std::string_view name, std::string svg) {
  return {
      std::string(journal_kind::kFigure),
      std::string(name),
      std::string(media_type::kSvg),
      std::move(svg)};
}

JournalEvent table_event(std::string_view name, const TrackedTable& table) {
  return json_event(journal_kind::kTable, name, to_json(table));
}

JournalEvent profile_event(const TrackedTable& table) {
  return json_event(journal_kind::kProfile, "", to_json(table));
}

JournalEvent histogram_event(
    std::string_view name,
    const TrackedHistogram& histogram) {
  JournalJson json = JournalJson::object();
  json["edges"] = to_json(histogram.edges);
  json["counts"] = to_json(histogram.counts);
  json["min"] = to_json(histogram.min);
  json["max"] = to_json(histogram.max);
  json["sum"] = to_json(histogram.sum);
  json["sum_squares"] = to_json(histogram.sum_squares);
  json["num"] = histogram.num;
  return json_event(journal_kind::kHistogram, name, json);
}

JournalEvent artifact_event(std::string_view path, std::string_view directory) {
  return {
      std::string(journal_kind::kArtifact),
      std::string(path),
      std::string(media_type::kPlainText),
      std::string(directory)};
}

JournalEvent project_event(std::string_view name) {
  return {
      std::string(journal_kind::kProject),
      std::string(name),
      std::string(media_type::kPlainText),
      ""};
}

JournalEvent checkpoint_event(std::string_view path) {
  return {
      std::string(journal_kind::kCheckpoint),
      std::string(path),
      std::string(media_type::kPlainText),
      ""};
}

JournalEvent system_event(const std::vector<JournalScalars::Scalar>& figures) {
  JournalJson json = JournalJson::object();
  JsonMembers members;
  for (const auto& [name, value] : figures)
    members.of(json, name) = to_json(value);
  return json_event(journal_kind::kSystem, "", json);
}

JournalEvent ranks_event(const std::vector<JournalRank>& ranks) {
  JournalJson list = JournalJson::array();
  for (const JournalRank& each : ranks) {
    JournalJson& json = list.emplace_back(JournalJson::object());
    json["rank"] = each.rank;
    json["step"] = each.step;
    json["steps_per_second"] = to_json(each.steps_per_second);
    json["memory_mb"] = to_json(each.memory_mb);
  }
  return json_event(journal_kind::kRanks, "", list);
}

std::string to_description(const JournalSessionInfo& info) {
  JournalJson json = JournalJson::object();
  json["command"] = info.command;
  json["versions"] = to_json(info.versions);
  json["seeds"] = to_json(info.seeds);
  json["host"] = info.host;
  json["pid"] = info.pid;
  json["num_processes"] = info.num_processes;
  json["run"] = info.run;
  json["mesh"] = to_json(info.mesh);
  return json_text(json);
}

std::vector<JournalRank> read_ranks(std::string_view body) {
  std::vector<JournalRank> ranks;
  const auto json = parse_journal_json(body);
  if (!json || !json->is_array()) return ranks;
  for (const JournalJson& each : *json) {
    if (!each.is_object()) continue;
    ranks.push_back(
        {whole_at(each, "rank"),
         whole_at(each, "step"),
         number_at(each, "steps_per_second"),
         number_at(each, "memory_mb")});
  }
  return ranks;
}

std::optional<TrackedHistogram> read_histogram(std::string_view body) {
  const auto json = parse_journal_json(body);
  if (!json || !json->is_object()) return std::nullopt;
  auto edges = numbers_at(*json, "edges");
  auto counts = numbers_at(*json, "counts");
  if (!edges || !counts || edges->size() != counts->size() + 1)
    return std::nullopt;
  return TrackedHistogram{
      std::move(*edges),
      std::move(*counts),
      number_at(*json, "min"),
      number_at(*json, "max"),
      number_at(*json, "sum"),
      number_at(*json, "sum_squares"),
      whole_at(*json, "num")};
}

}  // namespace accelerate::detail
