#include "cli/launch/nodes/hosts.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <chrono>
#include <csignal>
#include <cstring>
#include <optional>
#include <set>
#include <utility>

#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <accelerate/error.h>

#include "base/process/exec_pointers.h"
#include "base/text/text.h"
#include "cli/launch/output/launch_output.h"
#include "cli/launch/signals.h"
#include "launch/processes/exit_reason.h"

namespace accelerate::cli {

namespace {

using detail::format;
using Clock = std::chrono::steady_clock;

// How long launchers whose peers are gone have to end by themselves.
constexpr std::chrono::seconds kTimeForLaunchersToEnd{10};

bool is_this_machine(const std::string& host) {
  if (host == "localhost" || host == "127.0.0.1" || host == "::1") return true;
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) != 0) return false;
  const std::string own = name.data();
  return host == own || host == own.substr(0, own.find('.'));
}

// Whether a remote shell can only read the name as a host: not as an option
// ("-o..."), a list or pattern of pdsh, or a terminal control sequence.
bool is_host_name(std::string_view name) {
  // user@host: neither may look like an option.
  const std::size_t at = name.rfind('@');
  for (const std::string_view word :
       {name, at == std::string_view::npos ? name : name.substr(at + 1)}) {
    if (word.empty() || word.front() == '-' || word.front() == '@')
      return false;
  }
  return std::ranges::all_of(name, [](unsigned char c) {
    return std::isalnum(c) != 0 || c >= 0x80 ||
        std::string_view("-._:@%").find(static_cast<char>(c)) !=
        std::string_view::npos;
  });
}

// The launch command, without machine_rank and program.
std::vector<std::string> launch_command(const HostLaunch& launch) {
  std::vector<std::string> command{launch.tool, "launch"};
  command.insert(command.end(), launch.flags.begin(), launch.flags.end());
  command.insert(
      command.end(),
      {"--num_machines",
       std::to_string(launch.hosts.size()),
       "--num_processes",
       std::to_string(launch.num_processes),
       "--main_process_ip",
       launch.address,
       "--main_process_port",
       std::to_string(launch.port)});
  return command;
}

// `machine_rank` is not quoted, so that the shell may evaluate it.
std::string shell_line(
    const HostLaunch& launch,
    const std::string& machine_rank) {
  std::string line = format("cd {} && exec", quoted(launch.directory));
  for (const std::string& argument : launch_command(launch)) {
    line += format(" {}", quoted(argument));
  }
  line += format(" --machine_rank {}", machine_rank);
  for (const std::string& argument : launch.program) {
    line += format(" {}", quoted(argument));
  }
  return line;
}

// The text without terminal control characters.
std::string printable(std::string text) {
  for (char& c : text) {
    if (std::iscntrl(static_cast<unsigned char>(c)) != 0) c = '?';
  }
  return text;
}

struct RemoteLauncher {
  pid_t pid = -1;
  std::string name;
  bool is_running = true;
};

pid_t start(std::vector<std::string> command) {
  const std::vector<char*> pointers = detail::exec_pointers(command);
  pid_t pid = -1;
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none;
  sigemptyset(&none);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
  const int problem = posix_spawnp(
      &pid, pointers[0], nullptr, &attributes, pointers.data(), environ);
  posix_spawnattr_destroy(&attributes);
  if (problem != 0) {
    throw ConfigError(format(
        "[launch] cannot start {}: {}", pointers[0], std::strerror(problem)));
  }
  return pid;
}

}  // namespace

std::string quoted(const std::string& word) {
  const bool is_plain = !word.empty() &&
      word.find_first_not_of(
          "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
          "_-./:=,+@%") == std::string::npos;
  if (is_plain) return word;
  std::string out = "'";
  for (const char c : word)
    out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

std::vector<Host> parse_hosts(const std::string& text) {
  std::vector<Host> hosts;
  std::vector<std::string> complaints;
  std::set<std::string> names;
  int number = 0;
  for (const std::string& line : detail::split(text, '\n')) {
    ++number;
    const std::string bare(detail::trim(line.substr(0, line.find('#'))));
    if (bare.empty()) continue;
    Host host;
    bool is_valid = true;
    for (const std::string& word : detail::split(bare, ' ')) {
      if (word.empty()) continue;
      if (host.name.empty()) {
        host.name = word;
        continue;
      }
      const auto slots = word.starts_with("slots=")
          ? detail::parse_int(word.substr(6))
          : std::nullopt;
      is_valid = is_valid && slots && *slots > 0;
      host.slots = static_cast<int>(slots.value_or(0));
    }
    if (!is_valid) {
      complaints.push_back(format(
          "[launch] line {} of the host file is \"{}\", but must be HOST or "
          "HOST slots=N",
          number,
          printable(bare)));
    } else if (!is_host_name(host.name)) {
      complaints.push_back(format(
          "[launch] line {} of the host file names the host \"{}\", but a name "
          "must not begin with - and must have only letters, digits and -._:@%",
          number,
          printable(host.name)));
    } else if (!names.insert(host.name).second) {
      complaints.push_back(
          format("[launch] the host file names {} twice", host.name));
    }
    hosts.push_back(std::move(host));
  }
  if (hosts.empty()) complaints.emplace_back("[launch] the host file is empty");
  for (const Host& host : hosts) {
    if (host.slots != hosts.front().slots) {
      complaints.push_back(format(
          "[launch] every machine must run the same number of ranks, but {} "
          "has {} slots and {} has {}",
          host.name,
          host.slots,
          hosts.front().name,
          hosts.front().slots));
    }
  }
  if (!complaints.empty()) throw ConfigError(detail::join(complaints, "\n"));
  return hosts;
}

std::vector<std::vector<std::string>> host_commands(const HostLaunch& launch) {
  std::vector<std::vector<std::string>> commands;
  std::vector<std::string> elsewhere;
  for (std::size_t i = 0; i < launch.hosts.size(); ++i) {
    const std::string& name = launch.hosts[i].name;
    if (i == 0 && is_this_machine(name)) {
      std::vector<std::string> command = launch_command(launch);
      command.insert(command.end(), {"--machine_rank", "0"});
      command.insert(
          command.end(), launch.program.begin(), launch.program.end());
      commands.push_back(std::move(command));
    } else if (launch.shell == "pdsh") {
      elsewhere.push_back(name);
    } else {
      commands.push_back(
          {"ssh",
           "-o",
           "BatchMode=yes",
           "--",
           name,
           shell_line(launch, std::to_string(i))});
    }
  }
  if (!elsewhere.empty()) {
    const std::size_t before = launch.hosts.size() - elsewhere.size();
    // pdsh replaces %n by the index of a host in the list.
    commands.push_back(
        {"pdsh",
         "-S",
         "-R",
         "ssh",
         "-w",
         detail::join(elsewhere, ","),
         shell_line(launch, format("$((%n + {}))", before))});
  }
  return commands;
}

int run_commands(const std::vector<std::vector<std::string>>& commands) {
  const Signals signals;
  const LaunchOutput output(signals);
  std::vector<RemoteLauncher> children;
  const auto send_to_all = [&](int signal) {
    for (const RemoteLauncher& child : children) {
      if (child.is_running) kill(child.pid, signal);
    }
  };
  int code = 0;
  std::optional<Clock::time_point> kill_at;
  try {
    for (const auto& command : commands) {
      children.push_back(
          {start(command),
           command.front() == "ssh" ? format("ssh {}", command[4])
                                    : command.front()});
    }
  } catch (...) {
    send_to_all(SIGKILL);
    throw;
  }
  while (std::ranges::any_of(children, &RemoteLauncher::is_running)) {
    pollfd wait{signals.descriptor(), POLLIN, 0};
    poll(&wait, 1, kill_at ? 100 : -1);
    while (const auto info = signals.next()) {
      const auto signal = static_cast<int>(info->ssi_signo);
      if (signal == SIGCHLD) continue;
      send_to_all(signal);
      if (signal == SIGINT || signal == SIGTERM || signal == SIGHUP) {
        code = 128 + signal;
        if (!kill_at) kill_at = Clock::now() + kTimeForLaunchersToEnd;
      }
    }
    for (RemoteLauncher& child : children) {
      int status = 0;
      if (!child.is_running || waitpid(child.pid, &status, WNOHANG) <= 0) {
        continue;
      }
      child.is_running = false;
      if (detail::exit_code_of(status) == 0 || kill_at) continue;
      code = detail::exit_code_of(status);
      output.say(format(
          "accelerate-cpp: {} {}\n",
          child.name,
          detail::describe_exit(status)));
      // Connected launchers learn of the failure from each other; the rest are
      // ended later.
      kill_at = Clock::now() + kTimeForLaunchersToEnd;
    }
    if (kill_at && Clock::now() >= *kill_at) {
      kill_at = Clock::now() + kTimeForLaunchersToEnd;
      send_to_all(SIGTERM);
    }
  }
  return code;
}

}  // namespace accelerate::cli
