// Repeatedly kills a run that logs 10,000 values per second, at random moments,
// and resumes it from an earlier step. After each kill the journal must be
// readable, contain everything logged more than SECONDS before the kill, and
// have each step once, from the last attempt that logged it; steps that a
// resumed run keeps must never be lost.
// usage: kill_logging LOGGING_RUN NUM_KILLS [SECONDS [SEED]]
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "faults/logged_value.h"
#include "format/journal/journal_reader.h"
#include "format/journal/run_history.h"
#include "support/temporary_directory.h"

extern char** environ;

namespace {

using accelerate::faults::kMostSteps;
using accelerate::faults::kValuesInStep;
using accelerate::faults::logged_value;
using accelerate::testing::TemporaryDirectory;
namespace detail = accelerate::detail;

constexpr int kKillsInRun = 10;

struct Report {
  std::int64_t step = 0;
  std::int64_t nanoseconds = 0;
};

std::int64_t nanoseconds() {
  return std::chrono::steady_clock::now().time_since_epoch().count();
}

[[noreturn]] void fail(const std::string& text) {
  std::cout << text << '\n';
  std::exit(1);
}

class Process {
 public:
  explicit Process(std::vector<std::string> command) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) std::exit(2);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    std::vector<char*> arguments;
    for (std::string& word : command) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    const int problem = posix_spawn(
        &pid_, arguments[0], &actions, nullptr, arguments.data(), environ);
    posix_spawn_file_actions_destroy(&actions);
    if (problem != 0) std::exit(2);
    close(ends[1]);
    out_ = ends[0];
    reader_ = std::thread([this] { read_reports(); });
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;
  ~Process() { close(out_); }

  void kill() const { ::kill(pid_, SIGKILL); }
  /// Waits for the end and takes its reports; returns whether it succeeded.
  bool wait(std::vector<Report>& reports) {
    reader_.join();
    int status = 0;
    waitpid(pid_, &status, 0);
    reports = std::move(reports_);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }

 private:
  void read_reports() {
    Report report;
    // Reports are short enough that a pipe transfers them whole.
    while (read(out_, &report, sizeof report) == sizeof report)
      reports_.push_back(report);
  }

  pid_t pid_ = -1;
  int out_ = -1;
  std::vector<Report> reports_;
  std::thread reader_;
};

/// The attempt that logged each step, from step 0 on. Ends the program if the
/// journal is damaged, or if a step is missing, duplicated or incomplete.
std::vector<std::int64_t> attempts_in(const std::string& journal) {
  detail::JournalReader reader(journal);
  detail::RunHistory history;
  history.add(reader.read());
  if (reader.num_damaged_bytes() > 0)
    fail(std::to_string(reader.num_damaged_bytes()) + " bytes are damaged");
  std::optional<std::vector<std::int64_t>> attempts;
  for (int i = 0; i < kValuesInStep; ++i) {
    const std::string name = "value" + std::to_string(i);
    const auto series = history.series().find(name);
    std::vector<std::int64_t> own;
    if (series != history.series().end()) {
      for (const auto& point : series->second) {
        const auto step = static_cast<std::int64_t>(own.size());
        const auto attempt =
            static_cast<std::int64_t>(point.value) / kValuesInStep / kMostSteps;
        if (point.step != step || point.value != logged_value(attempt, step, i))
          fail(
              name + " has step " + std::to_string(point.step) + " and value " +
              std::to_string(point.value) + " in the place of step " +
              std::to_string(step));
        own.push_back(attempt);
      }
    }
    if (attempts && *attempts != own)
      fail(name + " has other steps than value0");
    attempts = std::move(own);
  }
  return *attempts;
}

/// A run that is killed and resumed.
class KilledRun {
 public:
  KilledRun(std::string program, std::int64_t grace_nanoseconds)
      : program_(std::move(program)), grace_(grace_nanoseconds) {}

  /// The number of steps in the journal.
  [[nodiscard]] std::int64_t num_steps() const {
    return static_cast<std::int64_t>(attempts_.size());
  }

  /// Resumes the run after `num_kept` steps, and kills it after `time`.
  void resume_and_kill(std::int64_t num_kept, std::chrono::milliseconds time) {
    Process process(command(num_kept, kMostSteps));
    std::this_thread::sleep_for(time);
    const std::int64_t end = nanoseconds();
    process.kill();
    std::vector<Report> reports;
    if (process.wait(reports)) fail("the run ended before it was killed");
    if (!std::filesystem::exists(journal())) {
      // The run may have been killed before it began.
      if (!reports.empty() && reports.front().nanoseconds <= end - grace_)
        fail("there is no journal");
      return;
    }
    check(num_kept);
    for (const Report& report : reports) {
      if (report.nanoseconds > end - grace_ || has(report.step)) continue;
      fail(
          "step " + std::to_string(report.step) +
          " is lost, which was logged " +
          std::to_string(static_cast<double>(end - report.nanoseconds) / 1e9) +
          " s before the kill");
    }
  }

  /// Resumes the run after `num_kept` steps, and lets it end.
  void resume_to_end(std::int64_t num_kept) {
    constexpr std::int64_t kMore = 50;
    Process process(command(num_kept, num_kept + kMore));
    std::vector<Report> reports;
    if (!process.wait(reports)) fail("the resumed run failed");
    check(num_kept);
    if (num_steps() != num_kept + kMore || !has(num_steps() - 1))
      fail("the resumed run lacks steps at its end");
  }

 private:
  [[nodiscard]] std::string journal() const {
    return (directory_ / "run" / "journal").string();
  }

  std::vector<std::string> command(
      std::int64_t num_kept,
      std::int64_t num_steps) {
    ++attempt_;
    return {
        program_,
        directory_.path().string(),
        "run",
        std::to_string(num_kept - 1),
        std::to_string(num_steps),
        std::to_string(attempt_)};
  }

  // Whether the last attempt has logged the step.
  [[nodiscard]] bool has(std::int64_t step) const {
    return step < num_steps() &&
        attempts_[static_cast<std::size_t>(step)] == attempt_;
  }

  // Kept steps are unchanged. Later ones are the last attempt's, or unchanged
  // if it logged nothing.
  void check(std::int64_t num_kept) {
    std::vector<std::int64_t> found = attempts_in(journal());
    std::vector<std::int64_t> expected(
        attempts_.begin(),
        attempts_.begin() + static_cast<std::ptrdiff_t>(num_kept));
    if (found.size() > expected.size() && found.back() == attempt_) {
      expected.resize(found.size(), attempt_);
    } else if (found != expected) {
      expected = attempts_;
    }
    if (found != expected)
      fail(
          "after attempt " + std::to_string(attempt_) + " from step " +
          std::to_string(num_kept) +
          ", steps that were kept are lost, or such "
          "that were repeated are as before");
    attempts_ = std::move(found);
  }

  std::string program_;
  std::int64_t grace_;
  TemporaryDirectory directory_;
  std::int64_t attempt_ = 0;
  std::vector<std::int64_t> attempts_;  // in the journal, by step
};

}  // namespace

int main(int argc, char** argv) {
  const int num_kills = std::atoi(argv[2]);
  const double seconds = argc > 3 ? std::atof(argv[3]) : 1;
  std::mt19937 random(argc > 4 ? static_cast<unsigned>(std::atoi(argv[4])) : 1);
  const auto draw = [&](std::int64_t most) {
    return std::uniform_int_distribution<std::int64_t>(0, most)(random);
  };
  // Long enough for some records to be older than the grace time.
  const auto longest = static_cast<std::int64_t>((seconds + 1.5) * 1000);
  int num_killed = 0;
  while (num_killed < num_kills) {
    KilledRun run(argv[1], static_cast<std::int64_t>(seconds * 1e9));
    const auto draw_kept = [&] {
      return run.num_steps() -
          draw(std::min<std::int64_t>(run.num_steps(), 200));
    };
    for (int i = 0; i < kKillsInRun && num_killed < num_kills; ++i) {
      run.resume_and_kill(
          draw_kept(), std::chrono::milliseconds(draw(longest)));
      ++num_killed;
    }
    run.resume_to_end(draw_kept());
  }
  std::cout << num_killed << " kills, all as expected\n";
}
