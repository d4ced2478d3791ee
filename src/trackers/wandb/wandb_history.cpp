#include "trackers/wandb/wandb_history.h"

#include <utility>

#include "format/journal/journal_entry.h"
#include "trackers/wandb/wandb_values.h"

namespace accelerate::detail {

std::optional<WandbHistory::Row> WandbHistory::advance(
    std::optional<std::int64_t> step) {
  if (!step || *step <= row_.step) return std::nullopt;
  return take(*step);
}

void WandbHistory::add(const nlohmann::ordered_json& values, double seconds) {
  merge_wandb_values(row_.values, values);
  row_.seconds = seconds;
}

std::optional<WandbHistory::Row> WandbHistory::commit() {
  return take(step_after(row_.step));
}

std::optional<WandbHistory::Row> WandbHistory::take(std::int64_t next_step) {
  Row row = std::exchange(row_, Row{.step = next_step});
  if (row.values.empty()) return std::nullopt;
  return row;
}

}  // namespace accelerate::detail
