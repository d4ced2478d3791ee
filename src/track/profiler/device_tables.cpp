#include <algorithm>
#include <functional>

#include <accelerate/profiler.h>

#include "track/profiler/text_columns.h"

namespace accelerate {

namespace {

// Templates' names have hundreds of characters.
constexpr std::size_t kLongestKernelName = 100;

std::string kernel_name(const std::string& name) {
  if (name.size() <= kLongestKernelName) return name;
  return name.substr(0, kLongestKernelName - 3) + "...";
}

const char* name_of_work(DeviceWork work) {
  switch (work) {
    case DeviceWork::kernel:
      return "kernel";
    case DeviceWork::communication:
      return "communication";
    case DeviceWork::copy:
      break;
  }
  return "copy";
}

struct DevicePart {
  const char* title;
  std::int64_t DeviceTimes::*time;
};

// The parts that add up to the step, then those that overlap with them.
constexpr DevicePart kDeviceParts[] = {
    {"compute", &DeviceTimes::compute_ns},
    {"communication", &DeviceTimes::communication_ns},
    {"copies", &DeviceTimes::copy_ns},
    {"queued", &DeviceTimes::queued_ns},
    {"for ranks", &DeviceTimes::ranks_ns},
    {"for data", &DeviceTimes::data_ns},
    {"launch-bound", &DeviceTimes::launch_ns},
    {"idle", &DeviceTimes::idle_ns},
    {"(hidden communication)", &DeviceTimes::hidden_communication_ns},
    {"(hidden copies)", &DeviceTimes::hidden_copy_ns}};

}  // namespace

std::string kernel_table(
    std::vector<KernelAverage> rows,
    std::size_t row_limit) {
  std::ranges::stable_sort(rows, std::greater(), &KernelAverage::time_total_us);
  double total_us = 0;
  for (const KernelAverage& row : rows) total_us += row.time_total_us;
  if (row_limit > 0 && rows.size() > row_limit) rows.resize(row_limit);
  detail::TextColumns table{
      .titles =
          {"Name", "Device", "Work", "Time %", "Time", "Time avg", "# of Runs"},
      .rows = {}};
  for (const KernelAverage& row : rows) {
    table.rows.push_back(
        {kernel_name(row.name),
         std::to_string(row.device),
         name_of_work(row.work),
         detail::fixed(
             total_us > 0 ? 100 * row.time_total_us / total_us : 0, 2) +
             "%",
         detail::time_text(row.time_total_us),
         detail::time_text(
             row.time_total_us /
             static_cast<double>(std::max<std::int64_t>(row.count, 1))),
         std::to_string(row.count)});
  }
  return to_text(table) + "Device time total: " + detail::time_text(total_us) +
      "\n";
}

std::string device_times_table(const std::vector<DeviceTimes>& rows) {
  detail::TextColumns table{
      .titles = {"rank", "device", "steps", "ms per step"}, .rows = {}};
  for (const DevicePart& part : kDeviceParts)
    table.titles.emplace_back(part.title);
  for (const DeviceTimes& row : rows) {
    const double steps =
        static_cast<double>(std::max<std::int64_t>(row.num_steps, 1));
    const double total =
        static_cast<double>(std::max<std::int64_t>(row.total_ns, 1));
    auto& cells = table.rows.emplace_back();
    cells.push_back(std::to_string(row.rank));
    cells.push_back(std::to_string(row.device));
    cells.push_back(std::to_string(row.num_steps));
    cells.push_back(
        detail::fixed(static_cast<double>(row.total_ns) / 1e6 / steps, 3));
    for (const DevicePart& part : kDeviceParts) {
      cells.push_back(
          detail::fixed(100 * static_cast<double>(row.*part.time) / total, 1) +
          "%");
    }
  }
  return to_text(table);
}

}  // namespace accelerate
