#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
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

/// A place in a source file. `file` is a string that lives as long as the
/// program.
struct CallPlace {
  const char* file = nullptr;
  std::uint32_t line = 0;
};

/// A collective as it is noted. Texts live as long as the program.
struct NotedCall {
  const char* operation = "";
  const char* dtype = nullptr;  ///< null: it has no tensor
  std::span<const std::int64_t> shape = {};
  int root = -1;  ///< in the world; -1: none
  CallPlace place = {};
};

class BoardWriter;

/// The collectives of one group, of one rank. Any thread may call.
class BoardLaneWriter {
 public:
  BoardLaneWriter(BoardWriter& writer, BoardLane& lane)
      : writer_(writer), lane_(lane) {}
  BoardLaneWriter(const BoardLaneWriter&) = delete;
  BoardLaneWriter& operator=(const BoardLaneWriter&) = delete;

  /// Notes that a call begins, and returns its number, from 1: equal on all
  /// ranks of the group if they make the same calls.
  std::uint64_t begin(const NotedCall& call) noexcept;
  /// Notes that call `number` and all before it have ended.
  void end(std::uint64_t number) noexcept;

  [[nodiscard]] const BoardLane& lane() const { return lane_; }

 private:
  // Numbers of texts that were used last, so that they are not looked up.
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
  // Used by the thread that stores into the lane.
  std::uint64_t count_ = 0;
  std::array<Known, 8> operations_;
  std::array<Known, 8> places_;
  std::array<Known, 4> dtypes_;
};

/// Writes the page of one rank. What it writes is read by other processes at
/// any moment. Any thread may call; phases are those of the thread that trains.
class BoardWriter {
 public:
  BoardWriter(Board board, int index, int rank);
  BoardWriter(const BoardWriter&) = delete;
  BoardWriter& operator=(const BoardWriter&) = delete;
  /// Notes that the rank has finished, unless it failed.
  ~BoardWriter();

  [[nodiscard]] const Board& board() const { return board_; }
  [[nodiscard]] int index() const { return index_; }

  /// A lane for the group of this name; null when the page is full. Lives as
  /// long as the writer.
  BoardLaneWriter* add_lane(std::string_view group);

  /// The rank enters a phase; returns the one that it was in, to return to.
  RankPhase enter(RankPhase phase) noexcept;
  /// The rank has made so many steps.
  void set_num_steps(std::uint64_t num_steps) noexcept;
  /// True in those steps whose phases are timed.
  [[nodiscard]] bool is_timed() const noexcept {
    return (page_.num_steps.load(std::memory_order_relaxed) & 7U) == 0;
  }
  /// Notes how long one step was in a phase, without waiting for other ranks.
  void note_duration(RankPhase phase, std::uint32_t microseconds) noexcept;

  /// The rank waits for `peers` until end_wait(), which takes the number that
  /// this returns. 0: no room to note it.
  std::uint32_t begin_wait(
      const char* what,
      std::span<const int> peers) noexcept;
  void end_wait(std::uint32_t number) noexcept;

  /// What the program's code says of how its ranks are monitored for hangs; see
  /// BoardPage.
  void set_hang_options(
      std::optional<std::chrono::milliseconds> threshold,
      std::optional<std::uint32_t> on_hang) noexcept;

  /// Why this rank fails.
  void fail(std::string_view reason) noexcept;

  /// The number of a text on the page; 0 when the page is full.
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

/// In a phase for as long as it lives. A null writer notes nothing.
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

/// Waits for certain ranks for as long as it lives. A null writer notes
/// nothing.
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
