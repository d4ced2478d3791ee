#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace accelerate::cli {

/// A program of ours that links LibTorch, beside the tool or in the installed
/// libexec directory. Throws ConfigError if it is not there.
std::filesystem::path find_libexec_program(const std::string& name);

/// What it printed, and how it ended.
struct Output {
  int code = 0;
  std::string out;
  std::string err;
};

/// Runs a program to its end, with this process's environment.
Output run_program(const std::vector<std::string>& command);

/// The same, with our output. Returns its exit code as a shell has it.
int run_shown(const std::vector<std::string>& command);

/// The tool itself.
std::filesystem::path own_path();

}  // namespace accelerate::cli
