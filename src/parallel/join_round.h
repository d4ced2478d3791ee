#pragma once

#include <optional>

#include <accelerate/world.h>

namespace accelerate::detail {

/// What a rank that still has data is about to do collectively.
struct JoinEvent {
  enum class Kind {
    bucket = 1,
    end_of_backward = 2,
    /// Gradients of earlier micro-steps that the last one did not touch.
    pending_gradients = 3,
  };
  Kind kind = Kind::bucket;
  int model = 0;
  int bucket = 0;

  bool operator==(const JoinEvent&) const = default;
};

/// Lets ranks that have run out of data shadow the collectives of the others
/// (PyTorch's Join, Accelerate's join_uneven_inputs): before each collective,
/// the ranks agree on what it is and on which of them still have data.
class JoinRound {
 public:
  JoinRound(Group group, bool divide_by_initial_world_size)
      : group_(std::move(group)),
        divides_by_all_(divide_by_initial_world_size),
        num_active_(group_.size()) {}

  /// Agrees on the next event. `mine` is unset on a rank without data. Returns
  /// what the ranks with data do; nothing if no rank has data. Collective.
  /// Throws DistributedError, naming the ranks, if they do different things.
  std::optional<JoinEvent> announce(const std::optional<JoinEvent>& mine);

  [[nodiscard]] const Group& group() const { return group_; }
  /// Number of ranks with data at the last event.
  [[nodiscard]] int num_active() const { return num_active_; }
  /// The lowest rank with data at the last event.
  [[nodiscard]] int first_active() const { return first_active_; }
  /// The divisor that turns a sum over the ranks into a mean.
  [[nodiscard]] double divisor() const {
    return divides_by_all_ ? group_.size() : num_active_;
  }

 private:
  Group group_;
  bool divides_by_all_;
  int num_active_;
  int first_active_ = 0;
};

}  // namespace accelerate::detail
