#pragma once

#include <queue>
#include <set>
#include <utility>
#include <vector>

#include "big_model/plan/sized_tree.h"

namespace accelerate::detail {

/// Modules and tensors that have no place yet, in the order in which they will
/// get one, and the largest layer among them. No item is inside of another one.
class PendingModules {
 public:
  /// All of the model: SizedTree::items().
  explicit PendingModules(const SizedTree& tree);

  [[nodiscard]] bool empty() const { return front() == end_; }
  [[nodiscard]] int front() const { return next_[index(end_)]; }
  /// Removes the first item. If the last of the largest layers was inside, looks
  /// for the largest of what remains.
  int take_front();
  void put_front(int node);
  void put_front(const std::vector<int>& nodes);
  void remove(int node);
  /// Puts parts in the place of an item.
  void replace(int node, const std::vector<int>& parts);
  /// Items in order.
  [[nodiscard]] std::vector<int> items() const;

  /// The item that is `node` or holds it; -1 if it has a place already.
  [[nodiscard]] int holder_of(int node) const;

  /// Bytes of the largest layer when it was last looked for. It may have got a
  /// place since along with a tied module, and still counts, as in Accelerate.
  [[nodiscard]] double largest_layer() const { return largest_layer_; }
  /// Looks again, among modules only.
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
  // Pending modules by the bytes of their largest layer. Those that are no
  // longer pending are dropped when they come to the top.
  std::priority_queue<std::pair<double, int>> by_layer_;
  std::vector<bool> is_in_queue_;
  double largest_layer_ = 0;
  // The layers of that size that were pending when they were last looked for
  // and have not been taken since.
  std::set<int> largest_;
};

}  // namespace accelerate::detail
