#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <sys/types.h>

#include "launch/board/board.h"

namespace accelerate::detail {

/// The newest collective of one group on one rank.
struct GroupCall {
  std::string group;
  std::uint64_t number = 0;  ///< counted within the group, from 1; 0: none yet
  std::string operation;
  std::string dtype;                ///< empty: it has no tensor
  std::vector<std::int64_t> shape;  ///< the first dimensions
  std::size_t num_dims = 0;
  int root = -1;
  std::string place;            ///< "group.cpp:120", "gather()", or empty
  bool blocks_program = false;  ///< see NotedCall
  bool has_ended = false;

  /// Whether both are the same operation on similar tensors.
  [[nodiscard]] bool agrees_with(const GroupCall& other) const;
};

/// Formats a call, as in "all_reduce (Float [4, 8]) number 12 of group
/// \"world\" at group.cpp:120".
std::string describe(const GroupCall& call);
/// "at group.cpp:120", "in gather()", or empty.
std::string describe_place(const GroupCall& call);

/// A wait for messages, or for values that other ranks write to the store.
struct PeerWait {
  std::uint64_t number = 0;
  std::string what;
  std::vector<int> peers;  ///< ranks in the world
};

/// The contents of one rank's page at one moment.
struct RankActivity {
  int rank = 0;
  int index = 0;  ///< of its page
  pid_t process = 0;
  BoardPageState state = BoardPageState::empty;
  RankPhase phase = RankPhase::starting;
  std::uint64_t num_phases = 0;
  std::uint64_t num_steps = 0;
  std::vector<GroupCall> calls;
  std::vector<PeerWait> waits;  ///< those that have not ended
  /// The median duration of each phase in microseconds over the last timed
  /// steps, and how many were timed.
  std::array<std::uint32_t, kNumRankPhases> median_us{};
  std::array<std::uint64_t, kNumRankPhases> num_timed{};
  std::string failure;
  /// Set once the supervisor has seen the process end.
  std::optional<int> wait_status = std::nullopt;
  std::string last_output;
  /// How the process ended, as in "exited with code 3"; empty if that is not
  /// known.
  std::string ending = {};
};

/// The rank's newest call in a group; null if it has not made the group.
const GroupCall* find_call(const RankActivity& rank, const std::string& group);

/// Whether the ranks' monitor has killed the page's process.
bool was_killed_for_hang(const BoardPage& page);
/// Reads a page while its rank may be writing it.
RankActivity read_activity(const Board& board, int index);
/// Reads all ranks' pages, including those of ranks that have not joined yet;
/// in an elastic group, those of the current generation.
std::vector<RankActivity> read_activities(const Board& board);

/// Names ranks, as in "rank 2" or "ranks 0, 1 and 4".
std::string describe_ranks(const std::vector<int>& ranks);

/// Describes a phase, as in "in forward" or "between calls of the library".
const char* describe(RankPhase phase);

}  // namespace accelerate::detail
