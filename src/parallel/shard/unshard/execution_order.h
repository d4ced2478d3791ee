#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

namespace accelerate::detail {

/// The order in which the units of a model are used, learned in each pass to
/// predict the next. Prediction stops once a pass departs from the learned
/// order.
class ExecutionOrder {
 public:
  void begin() {
    seen_.clear();
    follows_ = !learned_.empty();
  }

  void touch(std::size_t unit) {
    if (!seen_.empty() && seen_.back() == unit) return;
    follows_ = follows_ && seen_.size() < learned_.size() &&
        learned_[seen_.size()] == unit;
    seen_.push_back(unit);
  }

  void end() {
    if (!seen_.empty()) learned_ = seen_;
    seen_.clear();
  }

  /// Whether this pass has followed the order of the last one so far.
  [[nodiscard]] bool is_known() const { return follows_; }

  /// The next `count` units, or all that are left if fewer; none if the order
  /// is not known.
  [[nodiscard]] std::span<const std::size_t> next(std::size_t count) const {
    if (!follows_) return {};
    const std::size_t begin = std::min(seen_.size(), learned_.size());
    return std::span(learned_).subspan(
        begin, std::min(count, learned_.size() - begin));
  }

  /// Whether `unit` is among the next `count`.
  [[nodiscard]] bool is_due_soon(std::size_t unit, std::size_t count) const {
    const auto soon = next(count);
    return std::find(soon.begin(), soon.end(), unit) != soon.end();
  }

 private:
  std::vector<std::size_t> learned_;
  std::vector<std::size_t> seen_;
  bool follows_ = false;
};

}  // namespace accelerate::detail
