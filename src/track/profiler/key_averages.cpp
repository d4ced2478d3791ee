#include <accelerate/profiler.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <type_traits>
#include <utility>

#include "base/text/text.h"
#include "track/profiler/recorded_cycle.h"
#include "track/profiler/text_columns.h"

namespace accelerate {

namespace {

using detail::EventKind;
using detail::EventNode;
using detail::RecordedCycle;
using detail::RecordedEvent;
using detail::time_text;

double microseconds(std::int64_t ns) { return static_cast<double>(ns) / 1000; }

std::string stack_of(
    const RecordedCycle& cycle,
    const RecordedEvent& event,
    std::int64_t most) {
  if (most <= 0) return {};
  std::vector<std::string> functions = functions_of(cycle, event);
  if (functions.size() > static_cast<std::size_t>(most))
    functions.resize(static_cast<std::size_t>(most));
  return detail::join(functions, "\n");
}

void add_to(
    OperatorAverage& row,
    const RecordedEvent& event,
    const EventNode& node) {
  ++row.count;
  row.cpu_time_total_us += microseconds(event.end_ns - event.begin_ns);
  row.self_cpu_time_total_us += microseconds(node.self_ns);
  row.device_time_total_us += microseconds(node.device_ns);
  row.self_device_time_total_us += microseconds(node.self_device_ns);
  row.cpu_memory_usage += node.memory_bytes;
  row.self_cpu_memory_usage += node.self_memory_bytes;
  row.device_memory_usage += node.device_memory_bytes;
  row.self_device_memory_usage += node.self_device_memory_bytes;
  row.flops += event.flops;
}

std::string bytes_text(std::int64_t bytes) {
  constexpr double kStep = 1024;
  const double size = static_cast<double>(std::abs(bytes));
  const auto scaled = static_cast<double>(bytes);
  if (size >= kStep * kStep * kStep)
    return detail::fixed(scaled / kStep / kStep / kStep, 2) + " GB";
  if (size >= kStep * kStep)
    return detail::fixed(scaled / kStep / kStep, 2) + " MB";
  if (size >= kStep) return detail::fixed(scaled / kStep, 2) + " KB";
  return std::to_string(bytes) + " B";
}

// True if `a` comes before `b`.
bool is_before(
    const OperatorAverage& a,
    const OperatorAverage& b,
    OperatorOrder order) {
  switch (order) {
    case OperatorOrder::self_cpu_time_total:
      return a.self_cpu_time_total_us > b.self_cpu_time_total_us;
    case OperatorOrder::cpu_time_total:
      return a.cpu_time_total_us > b.cpu_time_total_us;
    case OperatorOrder::count:
      return a.count > b.count;
    case OperatorOrder::cpu_memory_usage:
      return a.cpu_memory_usage > b.cpu_memory_usage;
    case OperatorOrder::self_cpu_memory_usage:
      return a.self_cpu_memory_usage > b.self_cpu_memory_usage;
    case OperatorOrder::flops:
      return a.flops > b.flops;
    case OperatorOrder::self_device_time_total:
      return a.self_device_time_total_us > b.self_device_time_total_us;
    case OperatorOrder::device_time_total:
      return a.device_time_total_us > b.device_time_total_us;
    case OperatorOrder::device_memory_usage:
      return a.device_memory_usage > b.device_memory_usage;
    case OperatorOrder::self_device_memory_usage:
      return a.self_device_memory_usage > b.self_device_memory_usage;
    case OperatorOrder::name:
      break;
  }
  return a.name < b.name;
}

// The totals that percentages refer to.
struct Totals {
  double cpu_us = 0;
  double device_us = 0;
};

std::string percent_text(double part, double total) {
  return detail::fixed(total > 0 ? 100 * part / total : 0, 2) + "%";
}

using Average = OperatorAverage;

// A column of a table of operators; `is_there` tells whether a row fills it.
struct Column {
  const char* title;
  std::string (*text)(const Average& row, const Totals& totals);
  bool (*is_there)(const Average& row) = nullptr;
};

// These functions make columns of a field.

template <auto kField>
bool is_set(const Average& row) {
  return row.*kField != std::decay_t<decltype(row.*kField)>();
}

template <auto kField>
std::string as_time(const Average& row, const Totals&) {
  return time_text(row.*kField);
}

template <auto kField>
std::string as_average(const Average& row, const Totals&) {
  return time_text(row.*kField / static_cast<double>(row.count));
}

template <auto kField, auto kTotal>
std::string as_percent(const Average& row, const Totals& totals) {
  return percent_text(row.*kField, totals.*kTotal);
}

template <auto kField>
constexpr Column memory_column(const char* title) {
  const auto text = [](const Average& row, const Totals&) {
    return bytes_text(row.*kField);
  };
  return {title, text, is_set<kField>};
}

template <auto kField>
constexpr Column text_column(const char* title) {
  const auto text = [](const Average& row, const Totals&) {
    return row.*kField;
  };
  return {title, text, is_set<kField>};
}

constexpr auto has_device_time = is_set<&Average::device_time_total_us>;

constexpr Column kColumns[] = {
    {"Name", [](const Average& row, const Totals&) { return row.name; }},
    {"Self CPU %",
     as_percent<&Average::self_cpu_time_total_us, &Totals::cpu_us>},
    {"Self CPU", as_time<&Average::self_cpu_time_total_us>},
    {"CPU total", as_time<&Average::cpu_time_total_us>},
    {"CPU time avg", as_average<&Average::cpu_time_total_us>},
    {"Self CUDA",
     as_time<&Average::self_device_time_total_us>,
     has_device_time},
    {"Self CUDA %",
     as_percent<&Average::self_device_time_total_us, &Totals::device_us>,
     has_device_time},
    {"CUDA total", as_time<&Average::device_time_total_us>, has_device_time},
    {"CUDA time avg",
     as_average<&Average::device_time_total_us>,
     has_device_time},
    memory_column<&Average::cpu_memory_usage>("CPU Mem"),
    memory_column<&Average::self_cpu_memory_usage>("Self CPU Mem"),
    memory_column<&Average::device_memory_usage>("CUDA Mem"),
    memory_column<&Average::self_device_memory_usage>("Self CUDA Mem"),
    {"# of Calls",
     [](const Average& row, const Totals&) {
       return std::to_string(row.count);
     }},
    {"Total MFLOPs",
     [](const Average& row, const Totals&) {
       return row.flops == 0
           ? std::string("--")
           : detail::fixed(static_cast<double>(row.flops) / 1e6, 3);
     },
     is_set<&Average::flops>},
    text_column<&Average::input_shapes>("Input Shapes"),
    text_column<&Average::module>("Module"),
    {"Source Location",
     [](const Average& row, const Totals&) {
       return detail::join(detail::split(row.stack, '\n'), " < ");
     },
     is_set<&Average::stack>}};

}  // namespace

std::vector<OperatorAverage> ProfileResults::key_averages(
    const KeyAveragesOptions& options) const {
  using Key = std::tuple<std::string, std::string, std::string, std::string>;
  std::map<Key, std::size_t> places;
  std::vector<OperatorAverage> rows;
  for (std::size_t i = 0; i < cycle_->events.size(); ++i) {
    const RecordedEvent& event = cycle_->events[i];
    const EventNode& node = cycle_->nodes[i];
    if (event.kind == EventKind::part) continue;
    OperatorAverage row{.name = event.name};
    if (options.group_by_input_shape) row.input_shapes = event.input_shapes;
    if (options.group_by_module) row.module = node.module;
    row.stack = stack_of(*cycle_, event, options.group_by_stack_n);
    const auto [place, is_new] = places.try_emplace(
        Key(row.name, row.input_shapes, row.module, row.stack), rows.size());
    if (is_new) rows.push_back(std::move(row));
    add_to(rows[place->second], event, node);
  }
  return rows;
}

std::string operator_table(
    std::vector<OperatorAverage> rows,
    const OperatorTableOptions& options) {
  Totals totals;
  for (const OperatorAverage& row : rows) {
    totals.cpu_us += row.self_cpu_time_total_us;
    totals.device_us += row.self_device_time_total_us;
  }
  std::ranges::stable_sort(rows, [&](const auto& a, const auto& b) {
    return is_before(a, b, options.sort_by);
  });
  detail::TextColumns table;
  std::vector<const Column*> columns;
  for (const Column& column : kColumns) {
    if (column.is_there != nullptr &&
        std::ranges::none_of(rows, column.is_there)) {
      continue;
    }
    columns.push_back(&column);
    table.titles.emplace_back(column.title);
  }
  if (options.row_limit > 0 && rows.size() > options.row_limit)
    rows.resize(options.row_limit);
  for (const OperatorAverage& row : rows) {
    auto& cells = table.rows.emplace_back();
    for (const Column* column : columns)
      cells.push_back(column->text(row, totals));
  }
  std::string text = to_text(table) +
      detail::format("Self CPU time total: {}\n", time_text(totals.cpu_us));
  if (totals.device_us > 0) {
    text += detail::format(
        "Self CUDA time total: {}\n", time_text(totals.device_us));
  }
  return text;
}

}  // namespace accelerate
