#include "comm/monitoring/world_board.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <fstream>
#include <iterator>
#include <limits>
#include <mutex>
#include <thread>
#include <utility>

#include "base/text/text.h"

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
        format(
            "this rank's activity is not visible to others: {}", error.what()));
    return nullptr;
  }
}

RankPhase phase_of(StepPart part) {
  switch (part) {
    case StepPart::data:
      return RankPhase::data;
    case StepPart::forward:
      return RankPhase::forward;
    case StepPart::backward:
      return RankPhase::backward;
    case StepPart::optimizer:
      return RankPhase::optimizer;
    case StepPart::checkpoint:
      return RankPhase::checkpoint;
    case StepPart::communication:
      break;
  }
  return RankPhase::between;
}

// Notes phases and steps on a rank's page, and in every eighth step the
// durations of the phases, excluding waits for other ranks.
class BoardMonitor final : public StepListener {
 public:
  explicit BoardMonitor(std::shared_ptr<BoardWriter> writer)
      : writer_(std::move(writer)) {}

  void begin(StepPart part, const void*) noexcept override {
    const std::scoped_lock lock(mutex_);
    if (part == StepPart::communication) {
      if (num_waiting_++ == 0 && num_open_ > 0 && num_open_ <= kMostOpen &&
          open_[0].is_timed)
        waiting_since_ = Clock::now();
      return;
    }
    const RankPhase before = writer_->enter(phase_of(part));
    if (num_open_++ >= kMostOpen) return;
    OpenPart& open = open_[num_open_ - 1];
    open.before = before;
    // Nested parts count towards the enclosing one.
    open.is_timed = num_open_ == 1 && writer_->is_timed();
    if (!open.is_timed) return;
    open.waited_ns = waited_ns_;
    open.begin = Clock::now();
  }
  void end(StepPart part) noexcept override {
    const std::scoped_lock lock(mutex_);
    if (part == StepPart::communication) {
      if (num_waiting_ == 0 || --num_waiting_ > 0) return;
      if (waiting_since_ == Clock::time_point{}) return;
      waited_ns_ += (Clock::now() - waiting_since_).count();
      waiting_since_ = {};
      return;
    }
    if (num_open_ == 0 || num_open_-- > kMostOpen) return;
    const OpenPart& open = open_[num_open_];
    writer_->enter(open.before);
    if (!open.is_timed) return;
    const std::int64_t ns =
        (Clock::now() - open.begin).count() - (waited_ns_ - open.waited_ns);
    writer_->note_duration(
        phase_of(part),
        static_cast<std::uint32_t>(std::clamp<std::int64_t>(
            ns / 1000, 0, std::numeric_limits<std::uint32_t>::max())));
  }
  void change_in_flight(int) noexcept override {}
  void overlapped(std::int64_t, std::int64_t exposed) noexcept override {
    const std::scoped_lock lock(mutex_);
    waited_ns_ += exposed;
  }
  void stepped(std::int64_t num_steps) noexcept override {
    writer_->set_num_steps(static_cast<std::uint64_t>(num_steps));
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::size_t kMostOpen = 16;

  struct OpenPart {
    RankPhase before = RankPhase::between;
    bool is_timed = false;
    Clock::time_point begin{};
    std::int64_t waited_ns = 0;
  };

  std::shared_ptr<BoardWriter> writer_;
  std::mutex mutex_;
  // Guarded by the mutex.
  std::array<OpenPart, kMostOpen> open_;
  std::size_t num_open_ = 0;
  int num_waiting_ = 0;
  Clock::time_point waiting_since_{};
  std::int64_t waited_ns_ = 0;
};

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
        format("ranks' activity is not visible to others: {}", error.what()));
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
