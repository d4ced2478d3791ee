#include <accelerate/profiler.h>

#include <cstdint>

#include <nlohmann/json.hpp>

#include "track/profiler/text_columns.h"

namespace accelerate {

namespace {

struct Part {
  const char* title;  // in the table
  const char* name;   // in JSON, followed by a unit
  std::int64_t StepTimes::*time;
};

// The parts that add up to the step, then those that overlap with them.
constexpr Part kParts[] = {
    {"data", "data", &StepTimes::data_ns},
    {"forward", "forward", &StepTimes::forward_ns},
    {"backward", "backward", &StepTimes::backward_ns},
    {"optimizer", "optimizer", &StepTimes::optimizer_ns},
    {"communication", "communication", &StepTimes::communication_ns},
    {"other", "other", &StepTimes::other_ns},
    {"idle", "idle", &StepTimes::idle_ns},
    {"(hidden communication)",
     "hidden_communication",
     &StepTimes::hidden_communication_ns}};

double per_step_ms(const StepTimes& row, std::int64_t ns) {
  if (row.num_steps == 0) return 0;
  return static_cast<double>(ns) / 1e6 / static_cast<double>(row.num_steps);
}

double percent(const StepTimes& row, std::int64_t ns) {
  if (row.total_ns == 0) return 0;
  return 100 * static_cast<double>(ns) / static_cast<double>(row.total_ns);
}

}  // namespace

std::string step_times_table(const std::vector<StepTimes>& rows) {
  detail::TextColumns table{
      .titles = {"rank", "steps", "ms per step"}, .rows = {}};
  for (const Part& part : kParts) table.titles.emplace_back(part.title);
  for (const StepTimes& row : rows) {
    auto& cells = table.rows.emplace_back();
    cells.push_back(std::to_string(row.rank));
    cells.push_back(std::to_string(row.num_steps));
    cells.push_back(detail::fixed(per_step_ms(row, row.total_ns), 3));
    for (const Part& part : kParts)
      cells.push_back(detail::fixed(percent(row, row.*part.time), 1) + "%");
  }
  return to_text(table);
}

TrackedTable step_times_values(const std::vector<StepTimes>& rows) {
  TrackedTable table{.columns = {"rank", "steps", "step_ms"}, .rows = {}};
  for (const Part& part : kParts)
    table.columns.push_back(std::string(part.name) + "_ms");
  for (const StepTimes& row : rows) {
    auto& values = table.rows.emplace_back();
    values.emplace_back(row.rank);
    values.emplace_back(row.num_steps);
    values.emplace_back(per_step_ms(row, row.total_ns));
    for (const Part& part : kParts)
      values.emplace_back(per_step_ms(row, row.*part.time));
  }
  return table;
}

std::string step_times_json(const std::vector<StepTimes>& rows) {
  auto list = nlohmann::ordered_json::array();
  for (const StepTimes& row : rows) {
    nlohmann::ordered_json object{
        {"rank", row.rank},
        {"num_steps", row.num_steps},
        {"total_ns", row.total_ns}};
    for (const Part& part : kParts)
      object[std::string(part.name) + "_ns"] = row.*part.time;
    list.push_back(std::move(object));
  }
  return list.dump(2);
}

}  // namespace accelerate
