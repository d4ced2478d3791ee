#include <algorithm>

#include "format/torch/pickle_reader.h"

namespace accelerate::detail {

bool Pickle::is_container(Kind kind) {
  return kind == Kind::list || kind == Kind::tuple || kind == Kind::dict ||
      kind == Kind::set || kind == Kind::call || kind == Kind::persistent;
}

void Pickle::measure() {
  // Files written by Python rarely refer to a value twice.
  constexpr std::uint64_t kLeast = 100'000, kPlacesPerByte = 16;
  const std::uint64_t most = std::min<std::uint64_t>(
      kLeast + kPlacesPerByte * input_.size(), 0xF000'0000U);
  for (std::uint32_t i = 0; i < nodes_.size(); ++i) {
    if (is_container(nodes_[i].kind) && nodes_[i].size == 0) {
      measure_from(i, most);
    }
  }
}

// Visits nodes depth first. Nodes on the current path have height kOpen, which
// reveals a node that contains itself.
void Pickle::measure_from(std::uint32_t start, std::uint64_t most_places) {
  constexpr std::size_t kMostLevels = 1000;
  constexpr std::uint16_t kOpen = 0xFFFF;
  struct Visit {
    std::uint32_t node;
    std::size_t next = 0;
    std::uint64_t places = 1;
    std::uint16_t height = 0;
  };
  std::vector<Visit> visits{{start}};
  nodes_[start].height = kOpen;
  while (!visits.empty()) {
    Visit& visit = visits.back();
    const auto& items = containers_[nodes_[visit.node].payload];
    if (visit.next == items.size()) {
      if (visit.places > most_places) {
        fail("it refers to the same values too often");
      }
      const Visit done = visit;
      nodes_[done.node].size = static_cast<std::uint32_t>(done.places);
      nodes_[done.node].height = done.height;
      visits.pop_back();
      if (!visits.empty()) {
        visits.back().places += done.places;
        visits.back().height =
            std::max<std::uint16_t>(visits.back().height, done.height + 1);
      }
      continue;
    }
    const std::uint32_t item = items[visit.next++];
    const Node& node = nodes_[item];
    if (!is_container(node.kind)) {
      ++visit.places;
    } else if (node.height == kOpen) {
      fail("a value contains itself");
    } else if (node.size != 0) {
      visit.places += node.size;
      visit.height = std::max<std::uint16_t>(visit.height, node.height + 1);
    } else {
      nodes_[item].height = kOpen;
      visits.push_back({item});
    }
    if (visits.size() > kMostLevels || visits.back().height > kMostLevels) {
      fail("it is nested too deeply");
    }
  }
}

}  // namespace accelerate::detail
