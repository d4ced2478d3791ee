// Kills a run that logs 10,000 values a second again and again, at random
// moments, and resumes it from a step before. After each kill the journal must
// be readable and hold all that was logged more than a second before; at the
// end each step must be there once.
// usage: kill_logging LOGGING_RUN NUM_KILLS [SECONDS [SEED]]
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "format/journal/journal_reader.h"
#include "format/journal/run_history.h"
#include "support/temporary_directory.h"

extern char** environ;

namespace {

using accelerate::testing::TemporaryDirectory;
namespace detail = accelerate::detail;

constexpr int kValuesInStep = 10;
constexpr int kKillsInRun = 10;

struct Report {
  std::int64_t step = 0;
  std::int64_t nanoseconds = 0;
};

std::int64_t nanoseconds() {
  return std::chrono::steady_clock::now().time_since_epoch().count();
}

class Run {
 public:
  explicit Run(std::vector<std::string> command) {
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
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;
  ~Run() { close(out_); }

  void kill() const { ::kill(pid_, SIGKILL); }
  /// What it logged, once it has ended; whether it ended by itself.
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
    // Reports are shorter than what a pipe takes at once.
    while (read(out_, &report, sizeof report) == sizeof report)
      reports_.push_back(report);
  }

  pid_t pid_ = -1;
  int out_ = -1;
  std::vector<Report> reports_;
  std::thread reader_;
};

/// What is in the journal; ends the program if it is damaged.
detail::RunHistory history_in(const std::string& journal) {
  detail::JournalReader reader(journal);
  detail::RunHistory history;
  history.add(reader.read());
  if (reader.num_damaged_bytes() > 0) {
    std::cout << reader.num_damaged_bytes() << " bytes are damaged\n";
    std::exit(1);
  }
  return history;
}

/// The last step of which all values are there, from 0 on; -1 if there is none.
std::int64_t last_step(const detail::RunHistory& history) {
  const auto& series = history.series();
  if (series.size() < kValuesInStep) return -1;
  std::int64_t last = -1;
  bool is_first = true;
  for (const auto& [name, points] : series) {
    const int number = std::stoi(name.substr(std::string("value").size()));
    std::int64_t step = -1;
    for (const auto& point : points) {
      const auto expected =
          static_cast<double>((step + 1) * kValuesInStep + number);
      if (point.step != step + 1 || point.value != expected) {
        std::cout << name << " has step " << point.step << " after " << step
                  << '\n';
        std::exit(1);
      }
      ++step;
    }
    last = is_first ? step : std::min(last, step);
    is_first = false;
  }
  return last;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string program = argv[1];
  const int num_kills = std::atoi(argv[2]);
  const double seconds = argc > 3 ? std::atof(argv[3]) : 1;
  std::mt19937 random(argc > 4 ? static_cast<unsigned>(std::atoi(argv[4])) : 1);
  const auto draw = [&](std::int64_t most) {
    return std::uniform_int_distribution<std::int64_t>(0, most)(random);
  };
  const auto grace = static_cast<std::int64_t>(seconds * 1e9);
  int num_killed = 0;
  while (num_killed < num_kills) {
    const TemporaryDirectory directory;
    const std::string journal = (directory / "run" / "journal").string();
    std::int64_t kept = -1;
    for (int i = 0; i < kKillsInRun && num_killed < num_kills; ++i) {
      Run run(
          {program,
           directory.path().string(),
           "run",
           std::to_string(kept),
           "1000000000"});
      std::this_thread::sleep_for(std::chrono::milliseconds(draw(2500)));
      const std::int64_t time = nanoseconds();
      run.kill();
      std::vector<Report> reports;
      if (run.wait(reports)) return 2;
      ++num_killed;
      if (reports.empty()) continue;
      const std::int64_t last = last_step(history_in(journal));
      for (const Report& report : reports) {
        if (report.nanoseconds > time - grace || report.step <= last) continue;
        std::cout << "step " << report.step << " is lost, which was logged "
                  << static_cast<double>(time - report.nanoseconds) / 1e9
                  << " s before the kill\n";
        return 1;
      }
      kept = last < 0 ? -1 : last - draw(std::min<std::int64_t>(last, 200));
    }
    const std::int64_t num_steps = kept + 50;
    Run run(
        {program,
         directory.path().string(),
         "run",
         std::to_string(kept),
         std::to_string(num_steps)});
    std::vector<Report> reports;
    if (!run.wait(reports)) return 2;
    if (last_step(history_in(journal)) != num_steps - 1) {
      std::cout << "the resumed run lacks steps at its end\n";
      return 1;
    }
  }
  std::cout << num_killed << " kills, all as expected\n";
}
