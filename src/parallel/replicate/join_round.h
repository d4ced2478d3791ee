#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <accelerate/world.h>

namespace accelerate::detail {

/// What a rank that still has data is about to do together with the others.
struct JoinEvent {
  enum class Kind { bucket = 1, end_of_backward = 2 };
  Kind kind = Kind::bucket;
  int model = 0;
  int bucket = 0;

  bool operator==(const JoinEvent&) const = default;
};

/// Lets ranks that have run out of data take part in what the others do
/// (PyTorch's Join, Accelerate's join_uneven_inputs): before each message the
/// ranks agree what it is, and who still has data.
class JoinRound {
 public:
  JoinRound(Group group, bool divide_by_initial_world_size)
      : group_(std::move(group)),
        divides_by_all_(divide_by_initial_world_size),
        num_active_(group_.size()) {}

  /// Collective. `mine` is empty on a rank without data. Returns what the ranks
  /// with data do; nothing if there are none left. Throws DistributedError,
  /// naming the ranks, if they do different things.
  std::optional<JoinEvent> announce(const std::optional<JoinEvent>& mine);

  [[nodiscard]] const Group& group() const { return group_; }
  /// How many ranks had data when somebody last had.
  [[nodiscard]] int num_active() const { return num_active_; }
  /// The lowest of the ranks that had data when somebody last had.
  [[nodiscard]] int first_active() const { return first_active_; }
  /// What a sum over the ranks is divided by.
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
