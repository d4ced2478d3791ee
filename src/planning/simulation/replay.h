#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "planning/simulation/programs.h"

namespace accelerate::detail {

/// A rank computes something, or waits for a message.
struct ReplaySpan {
  bool is_wait = false;
  /// What is computed, or the kind of the message.
  std::string what;
  double begin = 0;
  double end = 0;
};

/// When what happened.
struct Replay {
  /// When the last rank ended, in seconds.
  double time = 0;
  /// Per rank, in order, without spans of no length.
  std::vector<std::vector<ReplaySpan>> ranks;
  /// By kind of message: seconds from begin to end of all of them.
  std::map<std::string, double> travelling;
  /// Why it cannot end; empty if it does.
  std::string deadlock;

  /// Seconds in which the rank computes.
  [[nodiscard]] double computing(std::size_t rank) const;
  /// Seconds in which it waits for messages of this kind; of all, if empty.
  [[nodiscard]] double waiting(std::size_t rank, const std::string& kind = {})
      const;
  /// The share of all ranks' time in which they compute nothing.
  [[nodiscard]] double bubble() const;
  /// The share of the time of messages of this kind (all, if empty) in which
  /// rank 0 does not wait for one.
  [[nodiscard]] double overlap(const std::string& kind = {}) const;
};

/// Replays programs. Tasks that use a resource at once get equal shares of it,
/// or take turns (SharedResource::turn).
/// Takes time in proportion to the instructions, times the tasks at once.
Replay replay(const RankPrograms& programs);

}  // namespace accelerate::detail
