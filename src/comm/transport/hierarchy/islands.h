#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace accelerate::detail {

/// A group's ranks, divided into islands that share memory: ranks are in
/// ascending order within an island, islands in the order of their first ranks.
class Islands {
 public:
  /// `keys`: one per rank; ranks with equal keys share memory.
  explicit Islands(const std::vector<std::string>& keys);

  [[nodiscard]] std::size_t count() const { return members_.size(); }
  [[nodiscard]] std::size_t num_ranks() const { return island_of_.size(); }
  [[nodiscard]] const std::vector<int>& members(std::size_t island) const {
    return members_[island];
  }
  [[nodiscard]] std::size_t island_of(int rank) const {
    return island_of_[static_cast<std::size_t>(rank)];
  }
  /// The rank's number within its island.
  [[nodiscard]] int local_rank(int rank) const {
    return local_rank_[static_cast<std::size_t>(rank)];
  }
  /// The size of the smallest island: the number of ranks per island that move
  /// data between islands at once, one per lane.
  [[nodiscard]] std::size_t num_lanes() const;

 private:
  std::vector<std::vector<int>> members_;
  std::vector<std::size_t> island_of_;
  std::vector<int> local_rank_;
};

}  // namespace accelerate::detail
