#include "comm/transport/disagreement.h"

#include <algorithm>
#include <array>

#include "base/text/text.h"

namespace accelerate::detail {

std::string describe_disagreement(const RankCall& own, const RankCall& other) {
  return format(
      "rank {} called {}, but rank {} called {}",
      own.rank,
      own.call,
      other.rank,
      other.call);
}

bool is_disagreement(std::string_view text) {
  constexpr std::array<std::string_view, 4> kParts{
      "rank ", " called ", ", but rank ", " called "};
  std::size_t from = 0;
  return std::ranges::all_of(kParts, [&](std::string_view part) {
    const std::size_t found = text.find(part, from);
    from = found + part.size();
    return found != std::string_view::npos;
  });
}

}  // namespace accelerate::detail
