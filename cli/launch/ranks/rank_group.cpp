#include "cli/launch/ranks/rank_group.h"

#include <chrono>
#include <csignal>

#include <sys/wait.h>
#include <unistd.h>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "launch/board/rank_activity.h"
#include "launch/processes/exit_reason.h"

namespace accelerate::cli {

namespace {

// Short, since a user who pressed Ctrl+C is waiting.
constexpr std::chrono::milliseconds kTimeAfterInterrupt{4000};

// Where a rank was when it ended: the rest of a line, and lines below it.
std::string describe_place(const detail::Board& board, int index) {
  const detail::RankActivity rank = detail::read_activity(board, index);
  if (rank.state == detail::BoardPageState::empty) return "\n";
  std::string text = detail::format(
      ", {}, step {}\n", detail::describe(rank.phase), rank.num_steps);
  for (const detail::GroupCall& call : rank.calls) {
    if (call.number == 0) continue;
    text += detail::format(
        "    {}: {}\n",
        call.has_ended ? "its last call" : "it was in",
        detail::describe(call));
  }
  return text;
}

}  // namespace

RankGroup::RankGroup(
    const LaunchPlan& plan,
    const Options& options,
    const Signals& signals,
    LaunchOutput& output,
    detail::Watchdog* watchdog)
    : plan_(plan),
      options_(options),
      signals_(signals),
      output_(output),
      watchdog_(watchdog),
      on_signal_(
          signals.descriptor(),
          [this] {
            while (const auto info = signals_.next()) handle(*info);
          }),
      on_stop_(
          options.member != nullptr ? options.member->descriptor()
                                    : options.stop,
          [this] { options_.member != nullptr ? follow_orders() : stop(); }),
      supervisor_(
          {.signals = &on_signal_,
           .event = &on_stop_,
           .has_groups = watchdog != nullptr,
           .is_surely_the_cause = detail::is_surely_the_cause,
           .on_end = [this](std::size_t index) { note_end(index); },
           .is_made_good =
               [this](std::size_t index) { return make_good(index); },
           .awaits_more =
               [this] {
                 return options_.member != nullptr && received_ == 0 &&
                     !was_stopped_ && !has_group_ended();
               },
           .interval = plan.processes_here() > 1 || options.member != nullptr
               ? detail::HangMonitor::kInterval
               : std::chrono::milliseconds(0),
           .on_interval =
               [this] {
                 if (generations_) keep_generations();
                 if (options_.member != nullptr) follow_orders();
                 if (hang_monitor_) hang_monitor_->look();
               }}) {
  start_board();
  try {
    if (options_.member != nullptr) {
      follow_orders();
    } else {
      for (int seat = 0; seat < plan_.processes_here(); ++seat) start(seat, 1);
    }
  } catch (...) {
    supervisor_.kill_and_wait();
    throw;
  }
}

void RankGroup::start(int seat, std::uint32_t first_generation) {
  std::optional<RankPlace> place;
  if (options_.member != nullptr && first_generation == 1)
    place = {options_.member->rank_of(seat), options_.member->num_ranks()};
  RankProcess& rank = *ranks_.emplace_back(start_rank(
      plan_,
      seat,
      {.is_isolated = watchdog_ != nullptr,
       .attempt = options_.attempt,
       .store = options_.store,
       .board = board_ ? board_->ticket() : std::string(),
       .first_generation = first_generation,
       .place = place},
      output_));
  rank.first_generation = first_generation;
  supervisor_.add(rank.pid, {&rank.out, &rank.err, &rank.start});
  if (watchdog_ != nullptr) watchdog_->watch(rank.pid);
  if (generations_) generations_->add(seat, rank.pid);
  if (options_.member != nullptr) options_.member->note_start(seat, rank.pid);
}

void RankGroup::start_board() {
  if (!plan_.has_board) return;
  try {
    board_.emplace(detail::Board::create(
        {.num_pages = plan_.processes_here(),
         .first_rank = plan_.rank_of(0),
         .world_size = plan_.num_processes,
         .attempt = options_.attempt,
         .machine = plan_.machine_rank,
         .command = detail::join(plan_.arguments, " ")}));
  } catch (const detail::SegmentError& error) {
    if (options_.member != nullptr) {
      throw ConfigError(detail::format(
          "[launch] an elastic group needs memory that its ranks share with "
          "the launcher: {}",
          error.what()));
    }
    // Training does not need the board.
    return;
  }
  if (options_.member != nullptr) {
    detail::BoardHeader& header = board_->shared_header();
    header.fewest_ranks.store(plan_.fewest_processes);
    header.most_ranks.store(plan_.num_processes);
    options_.member->use_board(*board_);
    return;
  }
  if (plan_.may_replace_ranks()) {
    generations_.emplace(
        *board_,
        detail::Generations::Options{
            .fewest = plan_.fewest_processes,
            .most = plan_.num_processes,
            .num_restarts_left = options_.num_restarts_left});
  }
  start_monitor();
}

void RankGroup::start_monitor() {
  if (plan_.processes_here() == 1) return;
  hang_monitor_ = std::make_unique<detail::HangMonitor>(
      *board_,
      detail::HangMonitorOptions{
          .threshold = plan_.hang_threshold,
          .on_hang = plan_.on_hang,
          .path = plan_.environment.get("PATH").value_or(""),
          .say = [this](const std::string& text) {
            say(detail::format("accelerate-cpp: {}", text));
          }});
}

void RankGroup::retire_monitor() {
  if (!hang_monitor_) return;
  hang_monitor_->retire();
  retired_monitors_.push_back(std::move(hang_monitor_));
}

void RankGroup::note_end(std::size_t index) {
  const int wait_status = supervisor_.ranks()[index].wait_status;
  if (const int problem = ranks_[index]->start.problem()) {
    const ConfigError error = start_error(plan_, problem);
    // Either all ranks of the first generation start, or none.
    if (ranks_[index]->first_generation == 1) throw error;
    say(detail::format("accelerate-cpp: {}\n", error.what()));
  }
  ranks_[index]->ending = describe_ending(index);
  if (generations_ && wait_status == 0 &&
      generations_->finish(ranks_[index]->seat)) {
    supervisor_.forget(index);
    if (watchdog_ != nullptr) watchdog_->forget(ranks_[index]->pid);
  }
  if (options_.member != nullptr)
    options_.member->note_end(ranks_[index]->seat, wait_status);
  if (!board_) return;
  detail::BoardPage& page = board_->page(ranks_[index]->seat);
  std::string words;
  for (const std::string& line : ranks_[index]->last_output.lines())
    words += detail::format("    {}\n", line);
  // Keeps the end of the output, which says why.
  if (words.size() >= page.last_output.size())
    words.erase(0, words.size() - page.last_output.size() + 1);
  detail::set_text(page.last_output, words);
  detail::set_text(page.ending, ranks_[index]->ending);
  page.wait_status.store(wait_status);
  page.has_ended.store(1);
  if (wait_status == 0 || std::exchange(has_failed_, true) || plan_.is_quiet ||
      received_ != 0 || was_stopped_ || ranks_.size() == 1 ||
      ranks_[index]->last_output.blames_others())
    return;
  say(detail::format(
      "accelerate-cpp: rank {} {}{}",
      ranks_[index]->rank,
      ranks_[index]->ending,
      describe_place(*board_, ranks_[index]->seat)));
}

std::string RankGroup::describe_ending(std::size_t index) const {
  const detail::Supervisor::Rank& supervised = supervisor_.ranks()[index];
  const RankProcess& rank = *ranks_[index];
  const int wait_status = supervised.wait_status;
  const int signal = WIFSIGNALED(wait_status) ? WTERMSIG(wait_status) : 0;
  const bool was_killed_for_hang =
      board_ && detail::was_killed_for_hang(board_->page(rank.seat));
  if (signal == SIGKILL && rank.is_late && !was_killed_for_hang) {
    return "was ended because it had not left the group's "
           "last generation in time";
  }
  if (signal == SIGABRT) {
    const std::string exception = rank.last_output.uncaught_exception();
    if (!exception.empty())
      return detail::format("ended with an uncaught {}", exception);
  }
  return detail::describe_end(
      {wait_status, supervised.ended_with, was_killed_for_hang});
}

RankGroup::~RankGroup() {
  if (watchdog_ == nullptr) return;
  for (const auto& rank : ranks_) watchdog_->forget(rank->pid);
}

GroupEnd RankGroup::run() {
  try {
    supervisor_.run();
  } catch (...) {
    supervisor_.kill_and_wait();
    throw;
  }
  return summarize();
}

void RankGroup::handle(const signalfd_siginfo& info) {
  const auto signal = static_cast<int>(info.ssi_signo);
  if (signal == SIGCHLD) return;
  if (signal == SIGTERM && ask_to_leave()) {
    received_ = signal;
    supervisor_.expect_end(plan_.grace);
    return;
  }
  // A rank in our own process group gets the terminal's signals directly.
  if (watchdog_ != nullptr || info.ssi_code != SI_KERNEL) {
    supervisor_.send_to_all(signal);
  }
  if (signal == SIGINT || signal == SIGTERM || signal == SIGHUP) {
    received_ = signal;
    supervisor_.expect_end(
        signal == SIGTERM ? plan_.grace : kTimeAfterInterrupt);
  }
}

void RankGroup::stop() {
  on_stop_.close();
  was_stopped_ = true;
  supervisor_.terminate();
}

GroupEnd RankGroup::summarize() const {
  GroupEnd end;
  end.was_stopped = was_stopped_;
  if (received_ != 0) {
    end.code = 128 + received_;
    end.was_signalled = true;
    return end;
  }
  std::vector<detail::Suspect> suspects;
  for (const std::size_t failed : supervisor_.failures()) {
    const int wait_status = supervisor_.ranks()[failed].wait_status;
    suspects.push_back(
        {failed,
         detail::is_surely_the_cause(wait_status),
         ranks_[failed]->last_output.blames_others()});
  }
  const std::optional<std::size_t> cause = detail::find_cause(suspects);
  if (!cause) return end;
  end.code = detail::exit_code_of(supervisor_.ranks()[*cause].wait_status);
  end.reason = describe(*cause);
  return end;
}

std::string RankGroup::describe(std::size_t cause) const {
  using detail::format;
  const int wait_status = supervisor_.ranks()[cause].wait_status;
  const RankProcess& rank = *ranks_[cause];
  if (watchdog_ == nullptr) {
    // A program that exits with a code has reported its own error.
    if (!WIFSIGNALED(wait_status)) return {};
    return format(
        "accelerate-cpp: the program {}\n", detail::describe_exit(wait_status));
  }
  // The last output says which exception.
  const bool has_thrown = WIFSIGNALED(wait_status) &&
      WTERMSIG(wait_status) == SIGABRT &&
      !rank.last_output.uncaught_exception().empty();
  const std::string name = format("rank {} (process {})", rank.rank, rank.pid);
  const char* const ending =
      has_thrown ? "ended with an uncaught exception" : rank.ending.c_str();
  const bool is_shared = rank.last_output.shows_different_calls();
  std::string text = is_shared
      ? format(
            "accelerate-cpp: the ranks made different calls, and all were "
            "ended; {}, the first that noticed, {}\n",
            name,
            ending)
      : format(
            "accelerate-cpp: {} {}{}",
            name,
            ending,
            ranks_.size() > 1 ? "; the others were ended\n" : "\n");
  if (rank.last_output.lines().empty()) return text;
  text += "accelerate-cpp: its last output:\n";
  for (const std::string& line : rank.last_output.lines()) {
    text += "    " + line + "\n";
  }
  return text;
}

}  // namespace accelerate::cli
