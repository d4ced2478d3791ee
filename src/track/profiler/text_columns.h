#pragma once

#include <string>
#include <vector>

namespace accelerate::detail {

/// A table of texts with a row of titles.
struct TextColumns {
  std::vector<std::string> titles;
  std::vector<std::vector<std::string>> rows;
};

/// The table with aligned columns, the first to the left, the others to the
/// right; each line ends with a line break.
std::string to_text(const TextColumns& table);

/// The number with this many digits after the point, in any locale.
std::string fixed(double value, int num_digits);

/// Microseconds as torch.profiler's tables show times: "1.500ms".
std::string time_text(double us);

}  // namespace accelerate::detail
