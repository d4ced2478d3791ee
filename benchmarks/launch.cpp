// How long the launcher takes to say --help, and two ranks from the command
// line to the end of their first all-reduce, beside one bare LibTorch process.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>

#include "report.h"

extern char** environ;

namespace {

using Clock = std::chrono::steady_clock;

double milliseconds_of(std::vector<std::string> command) {
  std::vector<char*> arguments;
  for (std::string& word : command) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(
      &actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  const auto start = Clock::now();
  pid_t child = 0;
  int status = 0;
  const int error = posix_spawn(
      &child, arguments[0], &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0 || waitpid(child, &status, 0) != child || status != 0) {
    std::fprintf(stderr, "launch: \"%s\" failed\n", command[0].c_str());
    std::exit(1);
  }
  return std::chrono::duration<double, std::milli>(Clock::now() - start)
      .count();
}

}  // namespace

int main(int, char** argv) {
  using namespace accelerate::benchmarks;
  const std::filesystem::path bin =
      std::filesystem::canonical(argv[0]).parent_path();
  const std::string launcher = bin / "accelerate-cpp";
  const std::string hello = bin / "bench_hello_torch";
  const std::string ranks = bin / "bench_first_all_reduce";

  std::vector<double> help, nothing;
  milliseconds_of({launcher, "--help"});
  for (int run = 0; run < 51; ++run) {
    nothing.push_back(milliseconds_of({"/bin/true"}));
    help.push_back(milliseconds_of({launcher, "--help"}));
  }
  report(
      {"launch",
       "help_ms",
       median(help),
       "ms",
       median(nothing),
       median(help) / median(nothing),
       help.size()});

  std::vector<double> one, two;
  milliseconds_of({hello});
  milliseconds_of({launcher, "launch", "--num_processes", "2", ranks});
  for (int run = 0; run < 15; ++run) {
    one.push_back(milliseconds_of({hello}));
    two.push_back(
        milliseconds_of({launcher, "launch", "--num_processes", "2", ranks}));
  }
  report(
      {"launch",
       "two_ranks_ms",
       median(two),
       "ms",
       median(one),
       median(two) / median(one),
       two.size()});
  report(
      {"launch",
       "two_ranks_over_hello",
       median(two) / median(one),
       "ratio",
       1.0,
       median(two) / median(one),
       two.size()});
  return 0;
}
