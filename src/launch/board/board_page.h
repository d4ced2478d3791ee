#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace accelerate::detail {

/// What a rank's program is doing.
enum class RankPhase : std::uint8_t {
  starting,    ///< has not taken part in a group yet
  between,     ///< in the program's own code, between library calls
  data,        ///< waiting for the loader's next batch
  forward,     ///< a prepared model's forward
  backward,    ///< Accelerator::backward()
  optimizer,   ///< Optimizer::step() and zero_grad()
  checkpoint,  ///< saving or loading
};
inline constexpr std::size_t kNumRankPhases = 7;

enum class BoardPageState : std::uint32_t { empty, running, finished, failed };

/// Values that one thread writes and other processes read consistently (a
/// seqlock): a reader that sees the same even version before and after has a
/// consistent copy.
template <std::size_t num_words>
struct VersionedWords {
  std::atomic<std::uint32_t> version;
  std::array<std::atomic<std::uint64_t>, num_words> words;
};

/// Characters up to the first zero.
template <std::size_t size>
using BoardText = std::array<char, size>;

/// The collectives of one group. Zeroed memory is a valid lane.
struct BoardLane {
  static constexpr std::size_t kMostDims = 4;
  static constexpr std::size_t kWords = 4 + kMostDims;

  /// The newest call begun: its number on this lane, from 1; its signature,
  /// equal on ranks that make the same call; its packed description; the number
  /// of dimensions; the first dimensions.
  alignas(64) VersionedWords<kWords> call;
  /// The number of the newest call that has completed.
  std::atomic<std::uint64_t> ended;
  BoardText<104> group;
};

/// A wait for certain ranks outside a group's collectives: for their messages,
/// or for values that they write to the store.
struct BoardWait {
  static constexpr std::size_t kMostPeers = 12;
  /// Number of the wait, from 1; packed description; peers, four per word, each
  /// as its rank plus one.
  static constexpr std::size_t kWords = 2 + kMostPeers / 4;

  alignas(64) VersionedWords<kWords> wait;
  std::atomic<std::uint64_t> ended;
};

/// Ring buffer of one phase's durations in the last steps.
struct PhaseDurations {
  static constexpr std::size_t kKept = 64;

  std::atomic<std::uint64_t> count;
  std::array<std::atomic<std::uint32_t>, kKept> microseconds;
};

/// The place of a process in an elastic group (elastic_seat.h). Survives the
/// processes that take it one after another.
struct BoardSeat {
  /// Written by the rank: its process, or 0 before it has announced itself, and
  /// the generation that it is ready for.
  std::atomic<std::int32_t> process;
  std::atomic<std::uint32_t> arrived;
  /// Written by the launcher before it sets the current generation: the rank in
  /// that generation, or -1 for a process that leaves the group.
  std::atomic<std::int32_t> rank;
};

/// One rank's activity. The rank writes all but the last part; observers read
/// it. Zeroed memory is a valid page.
struct BoardPage {
  static constexpr std::size_t kMostLanes = 32;
  static constexpr std::size_t kMostWaits = 4;
  static constexpr std::size_t kMostTexts = 128;

  alignas(64) std::atomic<BoardPageState> state;
  std::atomic<std::int32_t> process;
  std::atomic<std::int32_t> rank;
  std::atomic<std::uint32_t> phase;
  /// Counts changes of the phase.
  std::atomic<std::uint64_t> num_phases;
  std::atomic<std::uint64_t> num_steps;
  /// HangMonitorOptions from the program's own code, which override the
  /// launcher's: the threshold in milliseconds plus one, OnHang plus one; 0:
  /// not set.
  std::atomic<std::uint64_t> hang_threshold;
  std::atomic<std::uint32_t> on_hang;

  /// Names of operations, dtypes and places, which calls refer to by number.
  std::atomic<std::uint32_t> num_texts;
  std::array<BoardText<104>, kMostTexts> texts;

  std::atomic<std::uint32_t> num_lanes;
  std::array<BoardLane, kMostLanes> lanes;
  std::array<BoardWait, kMostWaits> waits;
  std::array<PhaseDurations, kNumRankPhases> durations;

  /// The rank's own reason for its failure; valid once `state` is failed.
  BoardText<504> failure;

  /// The rest is written by the process that supervises the rank.
  alignas(64) std::atomic<std::uint32_t> has_ended;
  std::atomic<std::int32_t> wait_status;
  /// The last lines of its standard error.
  BoardText<1016> last_output;
  /// How it ended, as in "exited with code 3".
  BoardText<504> ending;
  /// The process that the ranks' monitor kills for holding up the others;
  /// written before the kill.
  std::atomic<std::int32_t> killed_for_hang;

  /// The place of its process in an elastic group; see BoardSeat.
  alignas(64) BoardSeat seat;
};

/// The first page, which describes the run. Written before any rank can read
/// the board.
struct BoardHeader {
  static constexpr std::uint64_t kVersion = 4;

  std::uint64_t version;
  std::int32_t supervisor;  ///< its process number
  std::int32_t num_pages;
  std::int32_t first_rank;
  std::int32_t world_size;
  std::int32_t attempt;
  std::int32_t machine;
  std::int64_t started;  ///< seconds since 1970
  BoardText<504> command;

  /// The generations of an elastic group, from 1; 0: its launcher does not
  /// replace ranks. Ranks of a generation older than `target` leave it
  /// immediately; those of one older than `wanted`, at the end of their step.
  /// `num_ranks` is that of the current generation.
  std::atomic<std::uint32_t> generation;
  std::atomic<std::uint32_t> target;
  std::atomic<std::uint32_t> wanted;
  std::atomic<std::int32_t> num_ranks;
  /// The sizes that the group may have, and a requested size, or 0.
  std::atomic<std::int32_t> fewest_ranks;
  std::atomic<std::int32_t> most_ranks;
  std::atomic<std::int32_t> asked_ranks;

  /// Ring buffer of the newest reports by the ranks' monitor.
  static constexpr std::size_t kKeptReports = 4;
  std::atomic<std::uint64_t> num_reports;
  /// One more than is kept: the next report is written there.
  std::array<BoardText<3000>, kKeptReports + 1> reports;
};

static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

/// The contents of one word of a lane or a wait.
struct PackedCall {
  std::uint16_t operation = 0;  ///< number of its text
  std::uint16_t dtype = 0;      ///< 0: none
  std::uint16_t place = 0;      ///< 0: unknown
  std::uint16_t root = 0;       ///< one more than the rank; 0: none
  /// See NotedCall. Texts have far smaller numbers than its bit.
  bool blocks_program = false;

  [[nodiscard]] std::uint64_t word() const {
    return std::uint64_t{operation} |
        (blocks_program ? kBlocksProgram : std::uint64_t{0}) |
        std::uint64_t{dtype} << 16U | std::uint64_t{place} << 32U |
        std::uint64_t{root} << 48U;
  }
  [[nodiscard]] static PackedCall of(std::uint64_t word) {
    return {
        .operation = static_cast<std::uint16_t>(word & 0x7fffU),
        .dtype = static_cast<std::uint16_t>(word >> 16U),
        .place = static_cast<std::uint16_t>(word >> 32U),
        .root = static_cast<std::uint16_t>(word >> 48U),
        .blocks_program = (word & kBlocksProgram) != 0};
  }

 private:
  static constexpr std::uint64_t kBlocksProgram = 0x8000U;
};

}  // namespace accelerate::detail
