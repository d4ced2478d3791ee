#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "launch/board/board.h"

namespace accelerate::detail {

/// A place in a source file or, without a line, a function of the public
/// interface, as in "gather()". `file` is a string that lives as long as the
/// program.
struct CallPlace {
  const char* file = nullptr;
  std::uint32_t line = 0;
};

/// A collective to be noted. Texts live as long as the program.
struct NotedCall {
  const char* operation = "";
  const char* dtype = nullptr;  ///< null: it has no tensor
  std::span<const std::int64_t> shape = {};
  int root = -1;  ///< in the world; -1: none
  CallPlace place = {};
  /// Whether the program's thread returns from it, and makes other calls, only
  /// after it has ended.
  bool blocks_program = false;
};

class BoardWriter;

/// Notes one rank's collectives of one group. Thread-safe.
class BoardLaneWriter {
 public:
  BoardLaneWriter(BoardWriter& writer, BoardLane& lane)
      : writer_(writer), lane_(lane) {}
  BoardLaneWriter(const BoardLaneWriter&) = delete;
  BoardLaneWriter& operator=(const BoardLaneWriter&) = delete;

  /// Notes that a call begins. Returns its number, from 1, which is equal on
  /// all ranks of the group if they make the same calls.
  std::uint64_t begin(const NotedCall& call) noexcept;
  /// Notes that call `number` and all earlier ones have ended.
  void end(std::uint64_t number) noexcept;

  [[nodiscard]] const BoardLane& lane() const { return lane_; }

 private:
  // Cache of recently used texts' numbers, which saves lookups.
  struct Known {
    const void* address = nullptr;
    std::uint32_t line = 0;
    std::uint16_t text = 0;
    std::uint64_t hash = 0;
  };

  const Known& known(Known& entry, const char* text) noexcept;
  const Known& known(Known& entry, const CallPlace& place) noexcept;

  BoardWriter& writer_;
  BoardLane& lane_;
  // Used only by the thread that stores into the lane.
  std::uint64_t count_ = 0;
  std::array<Known, 8> operations_;
  std::array<Known, 8> places_;
  std::array<Known, 4> dtypes_;
};

/// Writes one rank's page, which other processes may read at any moment.
/// Thread-safe; phases are those of the training thread.
class BoardWriter {
 public:
  BoardWriter(Board board, int index, int rank);
  BoardWriter(const BoardWriter&) = delete;
  BoardWriter& operator=(const BoardWriter&) = delete;
  /// See finish().
  ~BoardWriter();

  [[nodiscard]] const Board& board() const { return board_; }
  [[nodiscard]] int index() const { return index_; }

  /// Returns a lane for the group of this name; null if the page is full. The
  /// lane lives as long as the writer.
  BoardLaneWriter* add_lane(std::string_view group);

  /// Enters a phase; returns the previous one, to be restored later.
  RankPhase enter(RankPhase phase) noexcept;
  /// Sets the number of steps that the rank has made.
  void set_num_steps(std::uint64_t num_steps) noexcept;
  /// True in steps whose phases are timed.
  [[nodiscard]] bool is_timed() const noexcept {
    return (page_.num_steps.load(std::memory_order_relaxed) & 7U) == 0;
  }
  /// Notes the time that one step spent in a phase, excluding waits for other
  /// ranks.
  void note_duration(RankPhase phase, std::uint32_t microseconds) noexcept;

  /// Notes that the rank waits for `peers` until end_wait(). Returns the number
  /// to pass there; 0 if there is no room to note the wait.
  std::uint32_t begin_wait(
      const char* what,
      std::span<const int> peers) noexcept;
  void end_wait(std::uint32_t number) noexcept;

  /// Sets the program's own options for hang monitoring; see BoardPage.
  void set_hang_options(
      std::optional<std::chrono::milliseconds> threshold,
      std::optional<std::uint32_t> on_hang) noexcept;

  /// Notes that the rank has finished, unless it failed.
  void finish() noexcept;
  /// Notes why this rank fails.
  void fail(std::string_view reason) noexcept;

  /// Returns the number of a text on the page; 0 if the page is full.
  std::uint16_t number_of(std::string_view text) noexcept;

 private:
  Board board_;
  int index_;
  BoardPage& page_;
  std::mutex mutex_;
  // Guarded by the mutex.
  std::map<std::string, std::uint16_t, std::less<>> texts_;
  std::map<std::string, std::unique_ptr<BoardLaneWriter>, std::less<>> lanes_;
  std::uint32_t busy_waits_ = 0;
};

/// Notes a phase for the lifetime of the object. A null writer notes nothing.
class BoardPhaseScope {
 public:
  BoardPhaseScope(BoardWriter* writer, RankPhase phase)
      : writer_(writer),
        before_(writer == nullptr ? phase : writer->enter(phase)) {}
  BoardPhaseScope(const BoardPhaseScope&) = delete;
  BoardPhaseScope& operator=(const BoardPhaseScope&) = delete;
  ~BoardPhaseScope() {
    if (writer_ != nullptr) writer_->enter(before_);
  }

 private:
  BoardWriter* writer_;
  RankPhase before_;
};

/// Notes a wait for certain ranks for the lifetime of the object. A null writer
/// notes nothing.
class BoardWaitScope {
 public:
  BoardWaitScope(
      BoardWriter* writer,
      const char* what,
      std::span<const int> peers)
      : writer_(writer),
        number_(writer == nullptr ? 0 : writer->begin_wait(what, peers)) {}
  BoardWaitScope(const BoardWaitScope&) = delete;
  BoardWaitScope& operator=(const BoardWaitScope&) = delete;
  ~BoardWaitScope() {
    if (writer_ != nullptr) writer_->end_wait(number_);
  }

 private:
  BoardWriter* writer_;
  std::uint32_t number_;
};

}  // namespace accelerate::detail
