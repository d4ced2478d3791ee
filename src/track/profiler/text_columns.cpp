#include "track/profiler/text_columns.h"

#include <algorithm>
#include <cstddef>
#include <iomanip>
#include <locale>
#include <sstream>

namespace accelerate::detail {

std::string fixed(double value, int num_digits) {
  std::ostringstream text;
  text.imbue(std::locale::classic());
  text << std::fixed << std::setprecision(num_digits) << value;
  return text.str();
}

std::string to_text(const TextColumns& table) {
  std::vector<std::size_t> widths;
  for (const std::string& title : table.titles) widths.push_back(title.size());
  for (const auto& row : table.rows) {
    for (std::size_t i = 0; i < row.size(); ++i)
      widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  const auto add_line = [&](const std::vector<std::string>& cells) {
    std::string line;
    for (std::size_t i = 0; i < cells.size(); ++i) {
      const std::string space(widths[i] - cells[i].size(), ' ');
      if (i > 0) line += "  ";
      line += i == 0 ? cells[i] + space : space + cells[i];
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  };
  add_line(table.titles);
  std::vector<std::string> rule;
  for (const std::size_t width : widths) rule.emplace_back(width, '-');
  add_line(rule);
  for (const auto& row : table.rows) add_line(row);
  return text;
}

std::string time_text(double us) {
  if (us >= 1e6) return fixed(us / 1e6, 3) + "s";
  if (us >= 1e3) return fixed(us / 1e3, 3) + "ms";
  return fixed(us, 3) + "us";
}

}  // namespace accelerate::detail
