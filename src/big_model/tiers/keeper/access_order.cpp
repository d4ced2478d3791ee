#include "big_model/tiers/keeper/access_order.h"

#include <algorithm>

namespace accelerate::detail {

namespace {

// The history is cut when it reaches this many times the number of units.
constexpr std::size_t kMostRounds = 64;
constexpr std::size_t kLeastHistory = 4096;

}  // namespace

AccessOrder::AccessOrder(std::size_t num_units) : num_units_(num_units) {}

std::uint64_t AccessOrder::context_at(std::size_t position) const {
  // The first unit has no predecessor.
  const std::size_t before =
      position == 0 ? num_units_ : history_[position - 1];
  return static_cast<std::uint64_t>(before) << 32U | history_[position];
}

void AccessOrder::note(std::size_t unit) {
  if (!history_.empty() && history_.back() == unit) return;
  std::size_t expected = unit;
  upcoming([&](std::size_t next) {
    expected = next;
    return false;
  });
  if (!history_.empty() && expected != unit) ++num_surprises_;
  if (!history_.empty())
    last_[context_at(history_.size() - 1)] = history_.size() - 1;
  history_.push_back(unit);
  const auto found = last_.find(context_at(history_.size() - 1));
  before_ = found == last_.end() ? kNowhere : found->second;
  if (history_.size() >= std::max(kLeastHistory, kMostRounds * num_units_))
    forget_oldest();
}

void AccessOrder::upcoming(
    const std::function<bool(std::size_t unit)>& visit) const {
  if (history_.empty() || num_units_ == 0) return;
  const std::size_t most = 2 * num_units_;
  std::size_t unit = history_.back();
  std::size_t position = before_;
  for (std::size_t i = 0; i < most; ++i) {
    if (position == kNowhere) {
      unit = (unit + 1) % num_units_;
    } else {
      unit = history_[++position];
      // The replay has reached the newest unit and repeats from here.
      if (position + 1 == history_.size()) position = before_;
    }
    if (!visit(unit)) return;
  }
}

void AccessOrder::forget_oldest() {
  const auto half = static_cast<std::ptrdiff_t>(history_.size() / 2);
  history_.erase(history_.begin(), history_.begin() + half);
  last_.clear();
  before_ = kNowhere;
  for (std::size_t i = 0; i + 1 < history_.size(); ++i)
    last_[context_at(i)] = i;
  const auto found = last_.find(context_at(history_.size() - 1));
  if (found != last_.end()) before_ = found->second;
}

}  // namespace accelerate::detail
