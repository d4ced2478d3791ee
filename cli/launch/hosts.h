#pragma once

#include <string>
#include <vector>

namespace accelerate::cli {

/// A line of a host file: "node1 slots=4".
struct Host {
  std::string name;
  int slots = 0;  ///< 0: not said
};

/// Throws ConfigError for lines that are none, hosts named twice, and numbers
/// of slots that differ.
std::vector<Host> parse_hosts(const std::string& text);

struct HostLaunch {
  std::vector<Host> hosts;
  std::string tool;       ///< path of accelerate-cpp on every host
  std::string directory;  ///< where programs start
  std::string shell;      ///< ssh or pdsh
  std::string address;
  int port = 0;
  int num_processes = 0;  ///< on all hosts
  /// What was said to launch, without flags of machines and hosts.
  std::vector<std::string> flags;
  std::vector<std::string> program;
};

/// The launches, one on each host: on this machine itself, elsewhere through
/// the shell; pdsh takes several hosts at once.
std::vector<std::vector<std::string>> host_commands(const HostLaunch& launch);

/// Runs them at the same time. When one fails, the others are ended; returns
/// its exit code, or 0.
int run_commands(const std::vector<std::vector<std::string>>& commands);

/// One word for a POSIX shell.
std::string quoted(const std::string& word);

}  // namespace accelerate::cli
