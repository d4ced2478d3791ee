#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "planning/simulation/programs.h"

namespace accelerate::detail {

/// A span of time in which a rank computes or waits for a message.
struct ReplaySpan {
  bool is_wait = false;
  /// What is computed, or the kind of the message.
  std::string what;
  double begin = 0;
  double end = 0;
};

/// The timeline of replayed programs.
struct Replay {
  /// When the last rank ends, in seconds.
  double time = 0;
  /// Per rank, in order, without empty spans.
  std::vector<std::vector<ReplaySpan>> ranks;
  /// Per kind of message, total seconds that messages are in flight.
  std::map<std::string, double> travelling;
  /// Why the programs cannot end; empty if they do.
  std::string deadlock;

  /// Seconds that the rank computes.
  [[nodiscard]] double computing_seconds(std::size_t rank) const;
  /// Seconds that the rank waits for messages of this kind; of any, if empty.
  [[nodiscard]] double waiting(std::size_t rank, const std::string& kind = {})
      const;
  /// The share of all ranks' time in which they do not compute.
  [[nodiscard]] double bubble() const;
  /// The share of the time that messages of this kind (any, if empty) are in
  /// flight in which rank 0 does not wait for one.
  [[nodiscard]] double overlap(const std::string& kind = {}) const;
};

/// Replays programs. Concurrent tasks get equal shares of a resource, or take
/// turns (SharedResource::turn). Running time is proportional to the number of
/// instructions times the number of concurrent tasks.
Replay replay(const RankPrograms& programs);

}  // namespace accelerate::detail
