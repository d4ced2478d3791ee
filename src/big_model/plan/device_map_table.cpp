#include <accelerate/device_map.h>

#include <algorithm>
#include <array>

#include "base/text/sizes.h"
#include "base/text/text.h"

namespace accelerate {

namespace {

constexpr std::size_t kColumns = 4;
using TableRow = std::array<std::string, kColumns>;

// Columns as wide as their longest text, two spaces apart; sizes are
// right-aligned.
std::string table_of(
    const std::vector<TableRow>& rows,
    const std::array<bool, kColumns>& is_right) {
  std::array<std::size_t, kColumns> widths{};
  for (const TableRow& row : rows) {
    for (std::size_t i = 0; i < kColumns; ++i)
      widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const TableRow& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < kColumns; ++i) {
      const std::string padding(widths[i] - row[i].size(), ' ');
      line += i == 0 ? "" : "  ";
      line += is_right[i] ? padding + row[i] : row[i] + padding;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

std::string size_text(double bytes) {
  return bytes < 0 ? "?" : detail::format_size(bytes);
}

std::string reason_text(const Placement& placement) {
  switch (placement.reason) {
    case PlacementReason::given:
      return "as given";
    case PlacementReason::fits: {
      std::string text = detail::format(
          "fits: {} were in use", size_text(placement.num_bytes_used));
      if (placement.num_bytes_reserved > 0)
        text += detail::format(
            ", {} kept free for the largest layer",
            size_text(placement.num_bytes_reserved));
      return text;
    }
    case PlacementReason::tied:
      return "shares a parameter with the module before it";
    case PlacementReason::fallback:
      return "fits where the modules before it do not";
    case PlacementReason::last:
      return "no room elsewhere";
    case PlacementReason::planned:
      break;
  }
  return placement.note;
}

std::string use_text(const DeviceUse& use) {
  std::string text;
  if (use.minimum_needed)
    text = detail::format(
        "nothing fits; the next module needs {}",
        size_text(*use.minimum_needed));
  if (use.num_bytes_reserved > 0 && !use.minimum_needed)
    text = detail::format(
        "{} kept free for the largest layer",
        size_text(use.num_bytes_reserved));
  return text;
}

}  // namespace

std::string DeviceMap::explain() const {
  std::vector<TableRow> rows{{"module", "size", "place", "why"}};
  for (const Placement& each : placements_) {
    rows.push_back(
        {each.name.empty() ? "(all)" : detail::printable(each.name),
         size_text(each.num_bytes),
         each.device.name(),
         reason_text(each)});
  }
  std::string text = table_of(rows, {false, true, false, false});
  if (!devices_.empty()) {
    rows = {{"place", "limit", "weights", "note"}};
    for (const DeviceUse& use : devices_) {
      rows.push_back(
          {use.device.name(),
           use.max_memory ? size_text(static_cast<double>(*use.max_memory))
                          : "none",
           size_text(use.num_bytes),
           use_text(use)});
    }
    text += "\n" + table_of(rows, {false, true, true, false});
  }
  for (const std::string& warning : warnings_) text += "\n" + warning + "\n";
  return text;
}

}  // namespace accelerate
