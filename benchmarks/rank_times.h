#pragma once

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include <unistd.h>

namespace accelerate::benchmarks {

/// Times after one of two launched ranks kills itself, in milliseconds.
struct TimesAfterDeath {
  /// Until the launcher's line that names the dead rank was read.
  double named = 0;
  /// Until the first step of both ranks afterwards; 0 if there was none.
  double stepped = 0;
};

/// Launches bench_restart_rank (programs/restart_rank.cpp). Exits the program
/// if no rank died, or if the launcher did not report it.
inline TimesAfterDeath times_after_death(
    const std::filesystem::path& bin,
    const std::string& kind,
    const std::string& flags) {
  using Clock = std::chrono::steady_clock;
  const std::filesystem::path stamps = std::filesystem::temp_directory_path() /
      ("bench_stamps_" + std::to_string(getpid()));
  const std::string command = (bin / "accelerate-cpp").string() +
      " launch --num_processes 2 " + flags + " " +
      (bin / "bench_restart_rank").string() + " " + stamps.string() + " " +
      kind + " 2>&1";
  FILE* const output = popen(command.c_str(), "r");
  long long named = 0;
  char line[4096];
  while (output != nullptr && std::fgets(line, sizeof(line), output)) {
    if (named == 0 && std::strstr(line, "rank 1 was killed") != nullptr)
      named = Clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
  }
  if (output != nullptr) pclose(output);
  std::ifstream in(stamps);
  long long died = 0, stepped = 0;
  in >> died >> stepped;
  std::filesystem::remove(stamps);
  if (died == 0 || named == 0) {
    std::fprintf(stderr, "nobody was told of a death: %s\n", command.c_str());
    std::exit(1);
  }
  return {
      static_cast<double>(named - died) / 1e6,
      stepped == 0 ? 0 : static_cast<double>(stepped - died) / 1e6};
}

}  // namespace accelerate::benchmarks
