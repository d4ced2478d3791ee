#pragma once

#include <memory>

#include <accelerate/detail/step_parts.h>
#include <accelerate/log.h>
#include <accelerate/world.h>

#include "config/rank_variables.h"
#include "launch/board/board_writer.h"
#include "launch/board/hang_monitor.h"

namespace accelerate::detail {

/// A world's board: this rank notes its activity there, and reads that of the
/// other ranks on its machine.
class WorldBoard {
 public:
  WorldBoard(Board board, int index, int rank);
  WorldBoard(const WorldBoard&) = delete;
  WorldBoard& operator=(const WorldBoard&) = delete;
  ~WorldBoard();

  [[nodiscard]] BoardWriter& writer() const { return *writer_; }
  [[nodiscard]] const Board& board() const { return writer_->board(); }
  /// Returns a listener that records phases and steps on the board.
  [[nodiscard]] std::shared_ptr<StepListener> monitor() const;

  /// Monitors the ranks for hangs on a thread of its own, for the lifetime of
  /// this object, and logs reports as warnings.
  void start_hang_monitor(HangMonitorOptions options, Logger logger);

 private:
  class MonitorThread;

  std::shared_ptr<BoardWriter> writer_;
  std::unique_ptr<MonitorThread> monitor_thread_;
};

/// Offers a board, through the store, to the other ranks on this machine.
/// Returns null if the system provides no shared memory, which is logged once.
std::shared_ptr<WorldBoard> make_world_board(
    const Store& store,
    const RankVariables& identity,
    const Logger& logger);
/// Returns the board that the machine's first rank has offered; null if it
/// offered none or this process cannot map it.
std::shared_ptr<WorldBoard> find_world_board(
    const Store& store,
    const RankVariables& identity,
    const Logger& logger);
/// Returns the launcher's board; null if it has none that this process can map.
std::shared_ptr<WorldBoard> launcher_board(
    const RankVariables& identity,
    const Logger& logger);

}  // namespace accelerate::detail
