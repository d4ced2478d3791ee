#pragma once

#include <memory>
#include <string>

#include <accelerate/detail/step_parts.h>
#include <accelerate/log.h>
#include <accelerate/world.h>

#include "config/rank_variables.h"
#include "launch/board/board_writer.h"
#include "launch/board/hang_monitor.h"

namespace accelerate::detail {

/// The board of a world: on it this rank notes what it does, and reads what the
/// other ranks of its machine do.
class WorldBoard {
 public:
  WorldBoard(Board board, int index, int rank);
  WorldBoard(const WorldBoard&) = delete;
  WorldBoard& operator=(const WorldBoard&) = delete;
  ~WorldBoard();

  [[nodiscard]] BoardWriter& writer() const { return *writer_; }
  [[nodiscard]] const Board& board() const { return writer_->board(); }
  /// Notes phases and steps.
  [[nodiscard]] std::shared_ptr<StepListener> monitor() const;

  /// Monitors the ranks for hangs on a thread of its own, for as long as this
  /// lives, and logs reports as warnings.
  void start_hang_monitor(HangMonitorOptions options, Logger logger);

 private:
  class MonitorThread;

  std::shared_ptr<BoardWriter> writer_;
  std::unique_ptr<MonitorThread> monitor_thread_;
};

/// Offers a board to the other ranks of this rank's machine, through the store.
/// Null where the system gives no memory to share; that is logged once.
std::shared_ptr<WorldBoard> make_world_board(
    const Store& store,
    const RankVariables& identity,
    const Logger& logger);
/// The board that the first rank of the machine has offered; null if it offered
/// none, or if this process may not map it.
std::shared_ptr<WorldBoard> find_world_board(
    const Store& store,
    const RankVariables& identity,
    const Logger& logger);
/// The launcher's board; null if it has none that this process may map.
std::shared_ptr<WorldBoard> launcher_board(
    const RankVariables& identity,
    const Logger& logger);

}  // namespace accelerate::detail
