#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
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
/// parameters each of them uses, in whatever order. Who follows the order in
/// which all ranks sent last time may wait for anything it has sent itself:
/// the rank that is least far has nothing to wait for. Who leaves it must not
/// wait before all its gradients are sent. Until there is such an order, units
/// are expected from the last to the first: a rank waits only for units after
/// its present one, and only if it has completed all of those.
class ReduceOrder {
 public:
  /// Units that never send anything.
  explicit ReduceOrder(std::vector<bool> is_silent = {})
      : is_silent_(std::move(is_silent)) {}

  /// A backward begins.
  void begin() {
    sent_.clear();
    hash_ = kOffset;
    follows_ = true;
    is_complete_ = is_silent_;
  }

  void send(const GradientMessage& message) {
    follows_ = follows_ && sent_.size() < learned_.size() &&
        learned_[sent_.size()] == message;
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
    if (!learned_.empty()) return follows_;
    const auto later =
        is_complete_.begin() + static_cast<std::ptrdiff_t>(present) + 1;
    return message.unit > present &&
        std::all_of(later, is_complete_.end(), [](bool is) { return is; });
  }

  /// Of everything sent in this backward, in its order.
  [[nodiscard]] std::uint64_t hash() const { return hash_; }

  /// No gradient will come any more. `all_alike`: every rank sent the same, in
  /// the same order; all ranks say so alike.
  void end(bool all_alike) {
    if (all_alike) learned_ = sent_;
  }

 private:
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
  std::vector<GradientMessage> learned_;
  std::vector<GradientMessage> sent_;
  std::uint64_t hash_ = kOffset;
  bool follows_ = true;
};

}  // namespace accelerate::detail
