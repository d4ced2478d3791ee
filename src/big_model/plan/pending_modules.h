#pragma once

#include <queue>
#include <set>
#include <utility>
#include <vector>

#include "big_model/plan/sized_tree.h"

namespace accelerate::detail {

/// Modules and tensors without a place, in the order in which they will get
/// one, and the largest layer among them. No item is inside another one.
class PendingModules {
 public:
  /// Starts with the entire model: SizedTree::items().
  explicit PendingModules(const SizedTree& tree);

  [[nodiscard]] bool empty() const { return front() == end_; }
  [[nodiscard]] int front() const { return next_[index(end_)]; }
  /// Removes the first item. If the last of the largest layers was inside it,
  /// finds the largest layer of what remains.
  int take_front();
  void put_front(int node);
  void put_front(const std::vector<int>& nodes);
  void remove(int node);
  /// Replaces an item with its parts.
  void replace(int node, const std::vector<int>& parts);
  /// Items in order.
  [[nodiscard]] std::vector<int> items() const;

  /// The item that is `node` or contains it; -1 if `node` already has a place.
  [[nodiscard]] int holder_of(int node) const;

  /// Bytes of the largest layer when it was last searched for. It may since
  /// have been placed along with a tied module, and still counts, as in
  /// Accelerate.
  [[nodiscard]] double largest_layer() const { return largest_layer_; }
  /// Searches again, among modules only.
  void find_largest_layer();

 private:
  static std::size_t index(int node) { return static_cast<std::size_t>(node); }
  void insert_before(int node, int next);
  void watch(const LargestLayer& largest);

  const SizedTree& tree_;
  int end_;  // stands for both ends of the list
  std::vector<int> next_;
  std::vector<int> previous_;
  std::vector<bool> is_pending_;
  // Pending modules by the bytes of their largest layer. Modules that are no
  // longer pending are dropped when they reach the top.
  std::priority_queue<std::pair<double, int>> by_layer_;
  std::vector<bool> is_in_queue_;
  double largest_layer_ = 0;
  // The layers of that size that were pending at the last search and have not
  // been taken since.
  std::set<int> largest_;
};

}  // namespace accelerate::detail
