#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

namespace accelerate::detail {

/// Gradients that are reduced together: that of one large parameter, or the
/// rest of a unit, which completes the unit.
struct GradientMessage {
  static constexpr std::size_t kRest = std::numeric_limits<std::size_t>::max();

  std::size_t unit = 0;
  /// Place of the large parameter among the trainable ones, or kRest.
  std::size_t place = kRest;

  bool operator==(const GradientMessage&) const = default;
};

/// Decides where in a backward a rank can wait for its reductions, to bound
/// their memory, such that no two ranks ever wait for each other, whichever
/// parameters each of them uses, in whatever order.
///
/// Remembers a few orders in which all ranks sent the same messages (several
/// losses cause several orders), as long as their common messages have one
/// order. A rank that follows one of these orders can wait for a common message
/// that it has sent: of the ranks that wait, the one furthest behind in that
/// order waits for a message that all others have sent. A rank that departs
/// from the orders must not wait before all its gradients are sent. Until an
/// order is learned, units are expected from the last to the first: a rank
/// waits only for units after its current one, and only if it has completed all
/// of those.
class ReductionOrder {
 public:
  /// `is_silent`: by unit, whether it never sends anything. `is_partial`: by
  /// unit, whether its messages go to only some ranks, and so do not show
  /// whether all ranks had the same order; empty if none is partial.
  explicit ReductionOrder(
      std::vector<bool> is_silent = {},
      std::vector<bool> is_partial = {})
      : is_silent_(std::move(is_silent)), is_partial_(std::move(is_partial)) {}

  /// Called when a backward begins.
  void begin() {
    sent_.clear();
    hash_ = kOffset;
    followed_.resize(learned_.size());
    std::iota(followed_.begin(), followed_.end(), std::size_t{0});
    is_complete_ = is_silent_;
  }

  void send(const GradientMessage& message) {
    std::erase_if(followed_, [&](std::size_t order) {
      return sent_.size() >= learned_[order].size() ||
          learned_[order][sent_.size()] != message;
    });
    sent_.push_back(message);
    mix(message.unit);
    mix(message.place);
    if (message.place == GradientMessage::kRest)
      is_complete_[message.unit] = true;
  }

  /// Whether this rank can wait for `message`, which it has sent, before it
  /// sends a message of unit `current`.
  [[nodiscard]] bool may_wait_for(
      const GradientMessage& message,
      std::size_t current) const {
    if (!learned_.empty())
      return !followed_.empty() && contains(common_, message);
    const auto later =
        is_complete_.begin() + static_cast<std::ptrdiff_t>(current) + 1;
    return message.unit > current &&
        std::all_of(later, is_complete_.end(), [](bool is) { return is; });
  }

  /// Hash of everything sent in this backward, in order.
  [[nodiscard]] std::uint64_t hash() const { return hash_; }

  /// Called when this backward has computed all its gradients: later messages
  /// complete units that it did not reach.
  void end_gradients() {
    reached_ = sent_;
    // All ranks have compared the order up to here.
    while (!reached_.empty() && !is_compared(reached_.back()))
      reached_.pop_back();
    mix(GradientMessage::kRest);
  }

  /// Called when everything is sent. `all_alike`: whether every rank sent the
  /// same messages in the same order; the same on all ranks.
  void end(bool all_alike) {
    if (all_alike && !reached_.empty()) learn();
  }

 private:
  [[nodiscard]] bool is_compared(const GradientMessage& message) const {
    const bool is_partial =
        message.unit < is_partial_.size() && is_partial_[message.unit];
    return is_partial_.empty() ||
        (message.place == GradientMessage::kRest && !is_partial);
  }

  using Messages = std::vector<GradientMessage>;

  static constexpr std::size_t kMaxOrders = 4;

  static bool contains(
      const Messages& messages,
      const GradientMessage& message) {
    return std::find(messages.begin(), messages.end(), message) !=
        messages.end();
  }

  // Returns the messages that both have, in the order of `messages`.
  static Messages common_of(const Messages& messages, const Messages& others) {
    Messages both;
    for (const GradientMessage& message : messages) {
      if (contains(others, message)) both.push_back(message);
    }
    return both;
  }

  void learn() {
    if (std::find(learned_.begin(), learned_.end(), reached_) != learned_.end())
      return;
    Messages common =
        learned_.empty() ? reached_ : common_of(common_, reached_);
    if (learned_.size() == kMaxOrders ||
        common != common_of(reached_, common)) {
      learned_.clear();
      common = reached_;
    }
    learned_.push_back(reached_);
    common_ = std::move(common);
  }

  // FNV-1a.
  static constexpr std::uint64_t kOffset = 14695981039346656037u;
  void mix(std::uint64_t word) {
    for (int byte = 0; byte < 8; ++byte) {
      hash_ ^= (word >> (8 * byte)) & 0xff;
      hash_ *= 1099511628211u;
    }
  }

  std::vector<bool> is_silent_;
  std::vector<bool> is_partial_;
  std::vector<bool> is_complete_;
  std::vector<Messages> learned_;
  /// The messages common to all learned orders, in their common order.
  Messages common_;
  /// Indices of the learned orders that this backward has followed so far.
  std::vector<std::size_t> followed_;
  Messages sent_;
  /// The messages, up to the last compared one, of units that this backward
  /// reached.
  Messages reached_;
  std::uint64_t hash_ = kOffset;
};

}  // namespace accelerate::detail
