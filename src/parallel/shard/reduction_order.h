#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

namespace accelerate::detail {

/// Gradients that travel together: of one large parameter, or what is left of a
/// unit, which completes it.
struct GradientMessage {
  static constexpr std::size_t kRest = std::numeric_limits<std::size_t>::max();

  std::size_t unit = 0;
  std::size_t part = kRest;

  bool operator==(const GradientMessage&) const = default;
};

/// Where in a backward a rank may wait for the others' gradients, to bound what
/// is under way, so that no two ranks ever wait for each other, whichever
/// parameters each of them uses, in whatever order.
///
/// Backwards in which all ranks sent the same, in the same order, are
/// remembered: a few, as several losses make, if what they have in common came
/// in one order. Who follows one of these may wait for what they have in common
/// and it has sent: among the ranks that wait, the one that is least far in
/// that order waits for what all others have sent. Who leaves them must not
/// wait before all its gradients are sent. Until there is one, units are
/// expected from the last to the first: a rank waits only for units after its
/// present one, and only if it has completed all of those.
class ReductionOrder {
 public:
  /// Units that never send anything.
  explicit ReductionOrder(std::vector<bool> is_silent = {})
      : is_silent_(std::move(is_silent)) {}

  /// A backward begins.
  void begin() {
    sent_.clear();
    hash_ = kOffset;
    followed_.resize(learned_.size());
    std::iota(followed_.begin(), followed_.end(), std::size_t{0});
    is_complete_ = is_silent_;
  }

  void send(const GradientMessage& message) {
    std::erase_if(followed_, [&](std::size_t way) {
      return sent_.size() >= learned_[way].size() ||
          learned_[way][sent_.size()] != message;
    });
    sent_.push_back(message);
    mix(message.unit);
    mix(message.part);
    if (message.part == GradientMessage::kRest)
      is_complete_[message.unit] = true;
  }

  /// Before sending something of unit `present`.
  [[nodiscard]] bool may_wait_for(
      const GradientMessage& message,
      std::size_t present) const {
    if (!learned_.empty())
      return !followed_.empty() && contains(common_, message);
    const auto later =
        is_complete_.begin() + static_cast<std::ptrdiff_t>(present) + 1;
    return message.unit > present &&
        std::all_of(later, is_complete_.end(), [](bool is) { return is; });
  }

  /// Hash of everything sent in this backward, in order.
  [[nodiscard]] std::uint64_t hash() const { return hash_; }

  /// No gradient will come any more: what is sent from here completes units
  /// that this backward did not reach.
  void end_gradients() {
    way_ = sent_;
    mix(GradientMessage::kRest);
  }

  /// Everything is sent. `all_alike`: every rank sent the same, in the same
  /// order; all ranks say so alike.
  void end(bool all_alike) {
    if (all_alike && !way_.empty()) learn();
  }

 private:
  using Messages = std::vector<GradientMessage>;

  static constexpr std::size_t kMostWays = 4;

  static bool contains(
      const Messages& messages,
      const GradientMessage& message) {
    return std::find(messages.begin(), messages.end(), message) !=
        messages.end();
  }

  // What of `messages` is in `others`, in its order.
  static Messages among(const Messages& messages, const Messages& others) {
    Messages both;
    for (const GradientMessage& message : messages) {
      if (contains(others, message)) both.push_back(message);
    }
    return both;
  }

  void learn() {
    if (std::find(learned_.begin(), learned_.end(), way_) != learned_.end())
      return;
    Messages common = learned_.empty() ? way_ : among(common_, way_);
    if (learned_.size() == kMostWays || common != among(way_, common)) {
      learned_.clear();
      common = way_;
    }
    learned_.push_back(way_);
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
  std::vector<bool> is_complete_;
  std::vector<Messages> learned_;
  /// What these have in common, in its order.
  Messages common_;
  /// Those that this backward has kept to so far.
  std::vector<std::size_t> followed_;
  Messages sent_, way_;
  std::uint64_t hash_ = kOffset;
};

}  // namespace accelerate::detail
