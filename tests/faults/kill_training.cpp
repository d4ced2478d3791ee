// Repeatedly kills a training run at random moments, resumes it on a different
// number of ranks, and compares the samples it saw with those of an
// uninterrupted run.
// usage: kill_training TRAINING_RANK NUM_KILLS [SEED]; exits with 1 if any
// differ.
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <iterator>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/temporary_directory.h"

extern char** environ;

namespace {

using accelerate::testing::TemporaryDirectory;

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
    if (posix_spawn(
            &pid_,
            arguments[0],
            &actions,
            nullptr,
            arguments.data(),
            environ) != 0) {
      std::cerr << "cannot start " << command[0] << '\n';
      std::exit(2);
    }
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    out_ = ends[0];
  }
  ~Run() { close(out_); }
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  /// Returns when the first step is done or the run has ended.
  void wait_for_training() const {
    char byte = 0;
    while (read(out_, &byte, 1) == 1 && byte != '\n') {
    }
  }
  void kill() const { ::kill(pid_, SIGKILL); }
  /// Waits for the end of the run; returns false if it was killed.
  [[nodiscard]] bool wait() const {
    int status = 0;
    waitpid(pid_, &status, 0);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return true;
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) return false;
    std::cerr << "training failed by itself, status " << status << '\n';
    std::exit(2);
  }

 private:
  pid_t pid_ = -1;
  int out_ = -1;
};

std::vector<char> seen_in(const TemporaryDirectory& directory) {
  std::ifstream file(directory / "seen", std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

int main(int argc, char** argv) {
  const std::string rank = argv[1];
  const int num_kills = std::atoi(argv[2]);
  std::mt19937 random(
      argc > 3 ? static_cast<unsigned>(std::atoi(argv[3])) : 1U);
  const auto draw = [&](int most) {
    return std::uniform_int_distribution<int>(0, most)(random);
  };
  const std::vector<std::string> kinds{
      "samples", "stream", "restorable_stream"};
  int killed = 0, num_runs = 0, num_different = 0;
  while (killed < num_kills) {
    const std::string kind =
        kinds[static_cast<std::size_t>(num_runs) % kinds.size()];
    const std::string seed = std::to_string(++num_runs);
    const TemporaryDirectory expected_directory, killed_directory;
    const Run uninterrupted(
        {rank, expected_directory.path().string(), kind, "1", seed});
    uninterrupted.wait_for_training();
    if (!uninterrupted.wait()) return 2;
    while (true) {
      const std::string ranks = std::to_string(1 + draw(2));
      const Run run(
          {rank, killed_directory.path().string(), kind, ranks, seed});
      // Kills some runs while they start, most while they train.
      if (draw(3) > 0) run.wait_for_training();
      std::this_thread::sleep_for(std::chrono::microseconds(draw(30'000)));
      // The last run may end.
      if (killed < num_kills) run.kill();
      if (run.wait()) break;
      ++killed;
    }
    const auto expected = seen_in(expected_directory);
    if (expected.empty()) return 2;
    if (seen_in(killed_directory) != expected) {
      ++num_different;
      std::cout << kind << " with seed " << seed << " differs\n";
    }
  }
  std::cout << killed << " kills in " << num_runs << " runs, " << num_different
            << " of them saw other samples\n";
  return num_different == 0 ? 0 : 1;
}
