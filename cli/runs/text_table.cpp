#include "cli/runs/text_table.h"

#include <algorithm>
#include <utility>

#include "base/text/text.h"

namespace accelerate::cli {

TextTable::TextTable(std::vector<std::string> heading) {
  rows_.push_back(std::move(heading));
}

void TextTable::add(std::vector<std::string> row) {
  row.resize(rows_.front().size());
  for (std::string& value : row) value = detail::printable(value);
  rows_.push_back(std::move(row));
}

std::string TextTable::text(std::string_view indent) const {
  const std::size_t num_columns = rows_.front().size();
  std::vector<std::size_t> widths(num_columns, 0);
  std::vector<bool> is_left(num_columns, false);
  for (std::size_t i = 0; i < num_columns; ++i) {
    is_left[i] = i == 0;
    for (std::size_t row = 0; row < rows_.size(); ++row) {
      const std::string& value = rows_[row][i];
      widths[i] = std::max(widths[i], detail::num_columns_of(value));
      if (row > 0 && !value.empty() && !detail::parse_double(value))
        is_left[i] = true;
    }
  }
  std::string text;
  for (const auto& row : rows_) {
    std::string line(indent);
    for (std::size_t i = 0; i < num_columns; ++i) {
      const std::string gap(widths[i] - detail::num_columns_of(row[i]), ' ');
      if (i > 0) line += "  ";
      line += is_left[i] ? row[i] + gap : gap + row[i];
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

}  // namespace accelerate::cli
