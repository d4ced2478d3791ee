// From the death of one of two ranks to the end of the first step of both
// afterwards: with run_elastic(), where only the dead one is started again, and
// where the whole group is.
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "report.h"

extern char** environ;

namespace {

void run(std::vector<std::string> command) {
  std::vector<char*> arguments;
  for (std::string& word : command) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  pid_t child = 0;
  int status = 0;
  const int error = posix_spawn(
      &child, arguments[0], nullptr, nullptr, arguments.data(), environ);
  if (error != 0 || waitpid(child, &status, 0) != child || status != 0) {
    std::fprintf(stderr, "recover: \"%s\" failed\n", command[0].c_str());
    std::exit(1);
  }
}

double recovery_ms(
    const std::string& launcher,
    const std::string& program,
    const std::string& stamps) {
  run(
      {launcher,
       "launch",
       "--quiet",
       "--num_processes",
       "2",
       "--max_restarts",
       "1",
       program,
       stamps});
  std::ifstream in(stamps);
  long long died = 0, stepped = 0;
  if (!(in >> died >> stepped)) {
    std::fprintf(stderr, "recover: %s did not go on\n", program.c_str());
    std::exit(1);
  }
  in.close();
  std::filesystem::remove(stamps);
  return static_cast<double>(stepped - died) / 1e6;
}

}  // namespace

int main(int, char** argv) {
  using namespace accelerate::benchmarks;
  const std::filesystem::path bin =
      std::filesystem::canonical(argv[0]).parent_path();
  const std::filesystem::path scratch = std::filesystem::temp_directory_path() /
      ("bench_recover_" + std::to_string(getpid()));
  std::filesystem::create_directories(scratch);
  std::vector<double> alone, all;
  constexpr int kRuns = 15;
  for (int i = 0; i < kRuns; ++i) {
    alone.push_back(recovery_ms(
        bin / "accelerate-cpp", bin / "bench_elastic_rank", scratch / "a"));
    all.push_back(recovery_ms(
        bin / "accelerate-cpp", bin / "bench_restart_rank", scratch / "b"));
  }
  std::filesystem::remove_all(scratch);
  report(
      {"recover",
       "recover_ms",
       median(alone),
       "ms",
       median(all),
       median(alone) / median(all),
       alone.size()});
  return 0;
}
