#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace accelerate::cli {

/// The path of one of our programs that link LibTorch, beside the tool or in
/// the installed libexec directory. Throws ConfigError if it does not exist.
std::filesystem::path find_libexec_program(const std::string& name);

/// The output and exit code of a program.
struct Output {
  int code = 0;
  std::string out;
  std::string err;
};

/// Runs a program to completion with this process's environment.
Output run_program(const std::vector<std::string>& command);

/// Runs a program that shares our output. Returns its exit code as a shell
/// would.
int run_shown(const std::vector<std::string>& command);

/// The path of the tool itself.
std::filesystem::path own_path();

}  // namespace accelerate::cli
