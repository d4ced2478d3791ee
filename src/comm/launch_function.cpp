#include <accelerate/launch.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <thread>
#include <utility>

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <accelerate/error.h>
#include <accelerate/world.h>

#include "base/exec_words.h"
#include "base/text.h"
#include "config/environment.h"
#include "config/rank_variables.h"

namespace accelerate {

namespace {

using detail::concat;
using Clock = std::chrono::steady_clock;

constexpr const char* kNameVariable = "ACCELERATE_CPP_FUNCTION";
constexpr const char* kReportVariable = "ACCELERATE_CPP_FUNCTION_REPORT";
// The rank that failed takes its peers along, and not always dies first.
constexpr std::chrono::milliseconds kTimeToFindTheCause{300};
constexpr std::chrono::seconds kTimeToEnd{4};

/// What a rank says of its end: the class of the error, then its text.
enum class Kind : char {
  config = 'C',
  checkpoint = 'P',
  distributed = 'D',
  data = 'A',
  other = 'E'
};

struct Rank {
  pid_t pid = -1;
  int report = -1;  // a pipe: at its end the rank has ended
  std::string said;
  int status = 0;
};

std::vector<std::string> own_arguments() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  std::vector<std::string> words = detail::split(text, '\0');
  if (!words.empty()) words.pop_back();
  return words;
}

std::vector<std::string> variables_of(
    const LaunchFunctionOptions& options,
    const detail::Environment& environment,
    int rank,
    int port,
    int report) {
  std::map<std::string, std::string> all;
  for (const auto& [name, value] : environment.all()) {
    if (!detail::is_rank_variable(name)) all[name] = value;
  }
  const std::string size = std::to_string(options.num_processes);
  if (!environment.has("OMP_NUM_THREADS")) {
    const unsigned cores = std::max(std::thread::hardware_concurrency(), 1U);
    all["OMP_NUM_THREADS"] = std::to_string(
        std::max(cores / static_cast<unsigned>(options.num_processes), 1U));
  }
  if (options.cpu) all["ACCELERATE_USE_CPU"] = "true";
  for (const auto& [name, value] : options.variables) all[name] = value;
  all["RANK"] = all["LOCAL_RANK"] = std::to_string(rank);
  all["WORLD_SIZE"] = all["LOCAL_WORLD_SIZE"] = size;
  all["MASTER_ADDR"] = "127.0.0.1";
  all["MASTER_PORT"] = std::to_string(port);
  // The store is here.
  all["TORCHELASTIC_USE_AGENT_STORE"] = "True";
  all[kNameVariable] = options.name;
  all[kReportVariable] = std::to_string(report);
  std::vector<std::string> lines;
  for (const auto& [name, value] : all) {
    lines.push_back(concat(name, "=", value));
  }
  return lines;
}

Rank start_rank(
    const LaunchFunctionOptions& options,
    const detail::Environment& environment,
    int rank,
    int port) {
  std::vector<std::string> words = own_arguments();
  if (options.arguments) {
    words.resize(1);
    words.insert(
        words.end(), options.arguments->begin(), options.arguments->end());
  }
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    throw ConfigError(
        concat("[launch] cannot make a pipe: ", std::strerror(errno)));
  }
  std::vector<std::string> lines =
      variables_of(options, environment, rank, port, ends[1]);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  // Onto itself: it stays open in the rank.
  ::posix_spawn_file_actions_adddup2(&actions, ends[1], ends[1]);
  Rank started;
  started.report = ends[0];
  const int problem = ::posix_spawn(
      &started.pid,
      "/proc/self/exe",
      &actions,
      nullptr,
      detail::exec_words(words).data(),
      detail::exec_words(lines).data());
  ::posix_spawn_file_actions_destroy(&actions);
  ::close(ends[1]);
  if (problem != 0) {
    ::close(ends[0]);
    throw ConfigError(concat(
        "[launch] cannot start this program again: ", std::strerror(problem)));
  }
  return started;
}

void end_all(std::vector<Rank>& ranks, int signal) {
  for (const Rank& rank : ranks) {
    if (rank.report >= 0) ::kill(rank.pid, signal);
  }
}

// Returns when all have ended.
void wait_for_all(std::vector<Rank>& ranks) {
  constexpr auto kNever = Clock::time_point::max();
  auto terminate_at = kNever, kill_at = kNever;
  while (true) {
    std::vector<pollfd> waits;
    std::vector<Rank*> owners;
    for (Rank& rank : ranks) {
      if (rank.report < 0) continue;
      waits.push_back({rank.report, POLLIN, 0});
      owners.push_back(&rank);
    }
    if (waits.empty()) return;
    const bool is_failing = terminate_at != kNever || kill_at != kNever;
    ::poll(waits.data(), waits.size(), is_failing ? 20 : -1);
    for (std::size_t i = 0; i < waits.size(); ++i) {
      if (waits[i].revents == 0) continue;
      Rank& rank = *owners[i];
      char block[4096];
      const ssize_t count = ::read(rank.report, block, sizeof block);
      if (count > 0) {
        rank.said.append(block, static_cast<std::size_t>(count));
        continue;
      }
      ::close(std::exchange(rank.report, -1));
      while (::waitpid(rank.pid, &rank.status, 0) < 0 && errno == EINTR) {
      }
      if (rank.status != 0 && !is_failing && terminate_at == kNever) {
        terminate_at = Clock::now() + kTimeToFindTheCause;
      }
    }
    const auto now = Clock::now();
    if (now >= terminate_at) {
      terminate_at = kNever;
      kill_at = now + kTimeToEnd;
      end_all(ranks, SIGTERM);
    } else if (now >= kill_at) {
      end_all(ranks, SIGKILL);
    }
  }
}

std::string end_of(int status) {
  if (WIFEXITED(status)) {
    return concat("exited with code ", WEXITSTATUS(status));
  }
  return concat("was killed by signal ", WTERMSIG(status));
}

[[noreturn]] void throw_as(Kind kind, const std::string& text) {
  switch (kind) {
    case Kind::config:
      throw ConfigError(text);
    case Kind::checkpoint:
      throw CheckpointError(text);
    case Kind::distributed:
      throw DistributedError(text);
    case Kind::data:
      throw DataError(text);
    case Kind::other:
      break;
  }
  throw Error(text);
}

// The error of a rank that did not only lose a peer, if there is one.
void throw_failure(const std::vector<Rank>& ranks) {
  const Rank* cause = nullptr;
  bool is_sure = false;
  for (const Rank& rank : ranks) {
    if (rank.status == 0) continue;
    // SIGTERM is what we sent.
    const bool is_told =
        WIFSIGNALED(rank.status) && WTERMSIG(rank.status) == SIGTERM;
    const bool is_victim = is_told ||
        (!rank.said.empty() &&
         rank.said.front() == static_cast<char>(Kind::distributed));
    if (cause == nullptr || (!is_sure && !is_victim)) {
      cause = &rank;
      is_sure = !is_victim;
    }
  }
  if (cause == nullptr) return;
  const auto number = cause - ranks.data();
  if (cause->said.empty()) {
    throw DistributedError(concat(
        "[launch] rank ",
        number,
        " of launch_function() ",
        end_of(cause->status)));
  }
  throw_as(
      static_cast<Kind>(cause->said.front()),
      concat("rank ", number, ": ", cause->said.substr(1)));
}

void report(int pipe, Kind kind, const std::string& text) {
  const std::string message = concat(static_cast<char>(kind), text);
  (void)!::write(pipe, message.data(), message.size());
}

// A rank's life: it ends here.
[[noreturn]] void run_as_rank(const std::function<void()>& function, int pipe) {
  ::fcntl(pipe, F_SETFD, FD_CLOEXEC);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  // Or is the one who reads it gone already?
  pollfd reader{pipe, 0, 0};
  if (::poll(&reader, 1, 0) > 0 && (reader.revents & POLLERR) != 0) {
    std::_Exit(1);
  }
  int code = 1;
  try {
    function();
    code = 0;
  } catch (const ConfigError& error) {
    report(pipe, Kind::config, error.what());
  } catch (const CheckpointError& error) {
    report(pipe, Kind::checkpoint, error.what());
  } catch (const DistributedError& error) {
    report(pipe, Kind::distributed, error.what());
  } catch (const DataError& error) {
    report(pipe, Kind::data, error.what());
  } catch (const std::exception& error) {
    report(pipe, Kind::other, error.what());
  } catch (...) {
    report(pipe, Kind::other, "something that is no exception was thrown");
  }
  std::exit(code);
}

}  // namespace

void launch_function(
    const std::function<void()>& function,
    const LaunchFunctionOptions& options) {
  if (options.num_processes < 1) {
    throw ConfigError(concat(
        "[launch] launch_function() was asked for ",
        options.num_processes,
        " processes; it takes at least one"));
  }
  const auto environment = detail::Environment::current();
  if (const auto name = environment.get(kNameVariable)) {
    if (*name != options.name) return;
    const auto pipe =
        detail::parse_int(environment.get(kReportVariable).value_or(""));
    run_as_rank(function, static_cast<int>(pipe.value_or(-1)));
  }
  const bool is_rank = detail::read_rank_variables(environment).size > 1;
  if (is_rank || options.num_processes == 1) {
    function();
    return;
  }
  const Store store = Store::tcp("127.0.0.1", 0, true, std::chrono::minutes(5));
  std::vector<Rank> ranks;
  try {
    for (int rank = 0; rank < options.num_processes; ++rank) {
      ranks.push_back(start_rank(options, environment, rank, store.port()));
    }
  } catch (...) {
    end_all(ranks, SIGKILL);
    wait_for_all(ranks);
    throw;
  }
  wait_for_all(ranks);
  throw_failure(ranks);
}

void debug_launcher(const std::function<void()>& function, int num_processes) {
  LaunchFunctionOptions options;
  options.num_processes = num_processes;
  options.cpu = true;
  options.name = "debug_launcher";
  launch_function(function, options);
}

}  // namespace accelerate
