#pragma once

#include <vector>

#include <accelerate/world.h>

namespace accelerate::detail {

/// The other ranks of a group, beginning after this one, so that the ranks do
/// not all begin with the same peer.
inline std::vector<int> peers_of(const Group& group) {
  std::vector<int> others;
  for (int step = 1; step < group.size(); ++step)
    others.push_back((group.rank() + step) % group.size());
  return others;
}

}  // namespace accelerate::detail
