#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <unordered_map>
#include <vector>

namespace accelerate::detail {

/// Predicts which units a model uses next from those that it used: after the
/// last two units it expects what followed the last time that they came in this
/// order. So the order of a forward is learned by its first run, a loop of
/// forwards and a backward are orders like any other, and a forward that takes
/// another path is followed as soon as it is known. Before anything is known,
/// units are expected by their numbers.
class AccessOrder {
 public:
  explicit AccessOrder(std::size_t num_units);

  /// A unit is used. The same one again and again counts once.
  void note(std::size_t unit);

  /// Calls `visit` with the units that are expected next, the next one first,
  /// until it returns false or twice as many as there are units were visited.
  void upcoming(const std::function<bool(std::size_t unit)>& visit) const;

  /// How often a unit was not the one that was expected.
  [[nodiscard]] std::int64_t num_surprises() const { return num_surprises_; }

 private:
  [[nodiscard]] std::uint64_t context_at(std::size_t position) const;
  void forget_oldest();

  std::size_t num_units_;
  std::vector<std::size_t> history_;
  /// Where pairs of units came last, by their second unit's place in the
  /// history, without the newest one.
  std::unordered_map<std::uint64_t, std::size_t> last_;
  /// Where the newest pair came before.
  std::size_t before_ = kNowhere;
  std::int64_t num_surprises_ = 0;

  static constexpr std::size_t kNowhere = static_cast<std::size_t>(-1);
};

}  // namespace accelerate::detail
