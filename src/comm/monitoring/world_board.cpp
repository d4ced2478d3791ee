#include "comm/monitoring/world_board.h"

#include <unistd.h>

#include <condition_variable>
#include <fstream>
#include <iterator>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "comm/monitoring/board_monitor.h"

namespace accelerate::detail {

namespace {

// The key at which the first rank of a machine offers its board.
std::string key_of(const RankVariables& identity) {
  return format("board/{}", identity.rank - identity.local_rank);
}

std::string own_command() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  for (char& c : text) {
    if (c == '\0') c = ' ';
  }
  return std::string(trim(text));
}

std::shared_ptr<WorldBoard> open_board(
    const std::string& ticket,
    const RankVariables& identity,
    int page,
    const Logger& logger) {
  try {
    Board board = Board::open(ticket);
    if (page >= board.num_pages()) return nullptr;
    return std::make_shared<WorldBoard>(std::move(board), page, identity.rank);
  } catch (const SegmentError& error) {
    logger.log(
        LogLevel::info,
        "comm",
        format("what this rank does is not shown to others: {}", error.what()));
    return nullptr;
  }
}

}  // namespace

/// Polls the board several times per second.
class WorldBoard::MonitorThread {
 public:
  MonitorThread(const Board& board, HangMonitorOptions options, Logger logger)
      : logger_(std::move(logger)),
        monitor_(board, with_sink(std::move(options))),
        thread_([this] { run(); }) {}
  MonitorThread(const MonitorThread&) = delete;
  MonitorThread& operator=(const MonitorThread&) = delete;
  ~MonitorThread() {
    {
      const std::lock_guard lock(mutex_);
      is_stopping_ = true;
    }
    stopped_.notify_one();
    thread_.join();
  }

 private:
  HangMonitorOptions with_sink(HangMonitorOptions options) const {
    options.say = [this](const std::string& text) {
      logger_.log(LogLevel::warning, "comm", trim(text));
    };
    return options;
  }

  void run() {
    std::unique_lock lock(mutex_);
    while (!stopped_.wait_for(
        lock, HangMonitor::kInterval, [this] { return is_stopping_; }))
      monitor_.look();
  }

  Logger logger_;
  HangMonitor monitor_;
  std::mutex mutex_;
  std::condition_variable stopped_;
  bool is_stopping_ = false;
  std::thread thread_;
};

WorldBoard::WorldBoard(Board board, int index, int rank)
    : writer_(std::make_shared<BoardWriter>(std::move(board), index, rank)) {}

WorldBoard::~WorldBoard() = default;

std::shared_ptr<StepListener> WorldBoard::monitor() const {
  return std::make_shared<BoardMonitor>(writer_);
}

void WorldBoard::start_hang_monitor(HangMonitorOptions options, Logger logger) {
  monitor_thread_ = std::make_unique<MonitorThread>(
      board(), std::move(options), std::move(logger));
}

std::shared_ptr<WorldBoard> make_world_board(
    const Store& store,
    const RankVariables& identity,
    const Logger& logger) {
  std::string ticket;
  std::shared_ptr<WorldBoard> made;
  try {
    made = std::make_shared<WorldBoard>(
        Board::create(
            {.num_pages = identity.local_size,
             .first_rank = identity.rank,
             .world_size = identity.size,
             .command = own_command()}),
        0,
        identity.rank);
    ticket = made->board().ticket();
  } catch (const SegmentError& error) {
    logger.log(
        LogLevel::info,
        "comm",
        format("what ranks do is not shown to others: {}", error.what()));
  }
  store.set(key_of(identity), ticket);
  return made;
}

std::shared_ptr<WorldBoard> find_world_board(
    const Store& store,
    const RankVariables& identity,
    const Logger& logger) {
  const std::string ticket = store.get(key_of(identity));
  if (ticket.empty()) return nullptr;
  return open_board(ticket, identity, identity.local_rank, logger);
}

std::shared_ptr<WorldBoard> launcher_board(
    const RankVariables& identity,
    const Logger& logger) {
  if (identity.board.empty()) return nullptr;
  return open_board(identity.board, identity, identity.board_page, logger);
}

}  // namespace accelerate::detail
