#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>
#include <vector>

namespace accelerate::detail {

/// In which order the units of a model are used, learned in each pass and
/// compared with in the next: what comes next, and what does not come again
/// soon. A pass that goes another way is followed no further.
class TouchOrder {
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

  /// Whether the order of the last pass was kept so far.
  [[nodiscard]] bool is_known() const { return follows_; }

  [[nodiscard]] std::optional<std::size_t> next() const {
    if (!follows_ || seen_.size() >= learned_.size()) return std::nullopt;
    return learned_[seen_.size()];
  }

  /// It is one of the next few.
  [[nodiscard]] bool is_due_soon(std::size_t unit) const {
    if (!follows_) return false;
    const std::size_t begin = std::min(seen_.size(), learned_.size());
    const std::size_t end = std::min(begin + kSoon, learned_.size());
    const auto from = learned_.begin() + static_cast<std::ptrdiff_t>(begin);
    const auto to = learned_.begin() + static_cast<std::ptrdiff_t>(end);
    return std::find(from, to, unit) != to;
  }

 private:
  static constexpr std::size_t kSoon = 2;

  std::vector<std::size_t> learned_;
  std::vector<std::size_t> seen_;
  bool follows_ = false;
};

}  // namespace accelerate::detail
