#include "comm/transport/hierarchy/islands.h"

#include <algorithm>
#include <map>

namespace accelerate::detail {

Islands::Islands(const std::vector<std::string>& keys) {
  std::map<std::string, std::size_t> known;
  for (std::size_t rank = 0; rank < keys.size(); ++rank) {
    const auto [entry, is_new] = known.emplace(keys[rank], members_.size());
    if (is_new) members_.emplace_back();
    std::vector<int>& members = members_[entry->second];
    island_of_.push_back(entry->second);
    local_rank_.push_back(static_cast<int>(members.size()));
    members.push_back(static_cast<int>(rank));
  }
}

std::size_t Islands::num_lanes() const {
  const auto smallest = std::ranges::min_element(
      members_,
      [](const auto& a, const auto& b) { return a.size() < b.size(); });
  return smallest->size();
}

}  // namespace accelerate::detail
