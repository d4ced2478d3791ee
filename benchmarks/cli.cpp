// The time of commands that do not need LibTorch, and of `env`; of two ranks
// from the command line to the end of their first all-reduce, compared with one
// bare LibTorch process; and from the death of a rank to the first step of the
// restarted group.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "rank_times.h"
#include "report.h"

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
    std::fprintf(stderr, "cli: \"%s\" failed\n", command[0].c_str());
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

  // The slowest command that does not load LibTorch.
  const std::filesystem::path scratch = std::filesystem::temp_directory_path() /
      ("bench_cli_" + std::to_string(getpid()));
  std::filesystem::create_directories(scratch);
  const std::string file = scratch / "config.yaml";
  std::vector<double> help, nothing, env;
  milliseconds_of({launcher, "--help"});
  for (int run = 0; run < 51; ++run) {
    nothing.push_back(milliseconds_of({"/bin/true"}));
    double slowest = 0;
    for (const std::vector<std::string>& words :
         std::vector<std::vector<std::string>>{
             {launcher, "--help"},
             {launcher, "launch", "--help"},
             {launcher, "merge-weights", "--help"},
             {launcher, "config", "default", "--config_file", file}}) {
      slowest = std::max(slowest, milliseconds_of(words));
    }
    std::filesystem::remove(file);
    help.push_back(slowest);
  }
  report(
      {"cli",
       "help_ms",
       median(help),
       "ms",
       median(nothing),
       median(help) / median(nothing),
       help.size()});

  for (int run = 0; run < 7; ++run) {
    env.push_back(milliseconds_of({launcher, "env"}));
  }
  report(
      {"cli",
       "env_ms",
       median(env),
       "ms",
       median(nothing),
       median(env) / median(nothing),
       env.size()});

  std::vector<double> restarts;
  for (int run = 0; run < 15; ++run) {
    restarts.push_back(
        times_after_death(bin, "whole", "--max_restarts 1").stepped);
  }
  std::filesystem::remove_all(scratch);

  std::vector<double> one, two;
  milliseconds_of({hello});
  milliseconds_of({launcher, "launch", "--num_processes", "2", ranks});
  for (int run = 0; run < 15; ++run) {
    one.push_back(milliseconds_of({hello}));
    two.push_back(
        milliseconds_of({launcher, "launch", "--num_processes", "2", ranks}));
  }
  report(
      {"cli",
       "two_ranks_ms",
       median(two),
       "ms",
       median(one),
       median(two) / median(one),
       two.size()});
  report(
      {"cli",
       "two_ranks_over_hello",
       median(two) / median(one),
       "ratio",
       1.0,
       median(two) / median(one),
       two.size()});
  report(
      {"cli",
       "restart_ms",
       median(restarts),
       "ms",
       median(one),
       median(restarts) / median(one),
       restarts.size()});
  return 0;
}
