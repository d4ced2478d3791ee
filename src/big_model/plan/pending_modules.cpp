#include "big_model/plan/pending_modules.h"

namespace accelerate::detail {

PendingModules::PendingModules(const SizedTree& tree)
    : tree_(tree),
      end_(tree.size()),
      next_(index(end_) + 1, end_),
      previous_(index(end_) + 1, end_),
      is_pending_(index(end_) + 1, false),
      is_in_queue_(index(end_) + 1, false) {
  const std::vector<int> items = tree.items();
  for (const int item : items) insert_before(item, end_);
  watch(tree.largest_layer(items));
}

void PendingModules::insert_before(int node, int next) {
  const int previous = previous_[index(next)];
  next_[index(previous)] = node;
  previous_[index(node)] = previous;
  next_[index(node)] = next;
  previous_[index(next)] = node;
  is_pending_[index(node)] = true;
  if (tree_.is_module(node) && !is_in_queue_[index(node)]) {
    is_in_queue_[index(node)] = true;
    by_layer_.emplace(tree_[node].largest_layer, node);
  }
}

void PendingModules::remove(int node) {
  const int previous = previous_[index(node)];
  const int next = next_[index(node)];
  next_[index(previous)] = next;
  previous_[index(next)] = previous;
  is_pending_[index(node)] = false;
}

int PendingModules::take_front() {
  const int node = front();
  remove(node);
  largest_.erase(
      largest_.lower_bound(node), largest_.lower_bound(tree_[node].end));
  if (largest_.empty()) find_largest_layer();
  return node;
}

void PendingModules::put_front(int node) { insert_before(node, front()); }

void PendingModules::put_front(const std::vector<int>& nodes) {
  const int next = front();
  for (const int node : nodes) insert_before(node, next);
}

void PendingModules::replace(int node, const std::vector<int>& parts) {
  const int next = next_[index(node)];
  remove(node);
  for (const int part : parts) insert_before(part, next);
}

std::vector<int> PendingModules::items() const {
  std::vector<int> list;
  for (int i = front(); i != end_; i = next_[index(i)]) list.push_back(i);
  return list;
}

int PendingModules::holder_of(int node) const {
  for (; node >= 0; node = tree_[node].parent) {
    if (is_pending_[index(node)]) return node;
  }
  return -1;
}

void PendingModules::watch(const LargestLayer& largest) {
  largest_layer_ = largest.num_bytes;
  largest_ = std::set<int>(largest.nodes.begin(), largest.nodes.end());
}

void PendingModules::find_largest_layer() {
  LargestLayer largest;
  std::vector<int> holders;
  while (!by_layer_.empty()) {
    const auto [num_bytes, node] = by_layer_.top();
    if (is_pending_[index(node)]) {
      if (!holders.empty() && num_bytes < largest.num_bytes) break;
      largest.num_bytes = num_bytes;
      holders.push_back(node);
    } else {
      is_in_queue_[index(node)] = false;
    }
    by_layer_.pop();
  }
  for (const int holder : holders) {
    tree_.add_layers(holder, largest.num_bytes, largest.nodes);
    by_layer_.emplace(largest.num_bytes, holder);
  }
  watch(largest);
}

}  // namespace accelerate::detail
