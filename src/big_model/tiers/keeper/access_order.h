#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <unordered_map>
#include <vector>

namespace accelerate::detail {

/// Predicts which units a model uses next from its history: it expects what
/// followed the last two units the last time they were used in this order. It
/// learns the order of a forward from its first run, treats a loop of forwards
/// and a backward like any other order, and follows a forward that takes
/// another path as soon as it has seen that path. Until then it expects units
/// in index order.
class AccessOrder {
 public:
  explicit AccessOrder(std::size_t num_units);

  /// Records the use of a unit. Consecutive uses of one unit count once.
  void note(std::size_t unit);

  /// Calls `visit` with the expected units, the next one first, until it
  /// returns false or has been called twice as often as there are units.
  void upcoming(const std::function<bool(std::size_t unit)>& visit) const;

  /// Number of times that the unit used was not the one expected.
  [[nodiscard]] std::int64_t num_surprises() const { return num_surprises_; }

 private:
  [[nodiscard]] std::uint64_t context_at(std::size_t position) const;
  void forget_oldest();

  std::size_t num_units_;
  std::vector<std::size_t> history_;
  /// Maps each pair of units to the history index of the second unit at the
  /// pair's last occurrence, not counting the newest pair.
  std::unordered_map<std::uint64_t, std::size_t> last_;
  /// History index of the previous occurrence of the newest pair.
  std::size_t before_ = kNowhere;
  std::int64_t num_surprises_ = 0;

  static constexpr std::size_t kNowhere = static_cast<std::size_t>(-1);
};

}  // namespace accelerate::detail
