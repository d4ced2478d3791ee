#pragma once

#include <string>
#include <vector>

namespace accelerate::cli {

/// A line of a host file: "node1 slots=4".
struct Host {
  std::string name;
  int slots = 0;  ///< 0: not given
};

/// Parses a host file. Throws ConfigError for invalid lines, repeated hosts,
/// and unequal numbers of slots.
std::vector<Host> parse_hosts(const std::string& text);

struct HostLaunch {
  std::vector<Host> hosts;
  std::string tool;       ///< path of accelerate-cpp on every host
  std::string directory;  ///< where programs start
  std::string shell;      ///< ssh or pdsh
  std::string address;
  int port = 0;
  int num_processes = 0;  ///< on all hosts
  /// The flags of launch except those about machines and hosts.
  std::vector<std::string> flags;
  std::vector<std::string> program;
};

/// The commands that start one launcher per host: directly on this machine,
/// through the remote shell elsewhere. A single pdsh command starts several.
std::vector<std::vector<std::string>> host_commands(const HostLaunch& launch);

/// Runs the commands concurrently. When one fails, stops the others and returns
/// its exit code; otherwise returns 0.
int run_commands(const std::vector<std::vector<std::string>>& commands);

/// The string quoted as one POSIX shell word.
std::string quoted(const std::string& word);

}  // namespace accelerate::cli
