#include <accelerate/launch.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include <fcntl.h>
#include <unistd.h>

#include <accelerate/error.h>
#include <accelerate/log.h>

#include "base/text/encoding.h"
#include "base/text/text.h"
#include "config/environment.h"
#include "config/environment_scope.h"
#include "config/rank_variables.h"
#include "config/settings.h"
#include "launch/board/board.h"
#include "launch/board/hang_monitor.h"
#include "launch/board/rank_activity.h"
#include "launch/processes/exit_reason.h"
#include "launch/processes/start_process.h"
#include "launch/processes/supervisor.h"
#include "launch/store_server.h"

namespace accelerate {

namespace {

using detail::format;

constexpr const char* kNameVariable = "ACCELERATE_CPP_FUNCTION";
constexpr const char* kReportVariable = "ACCELERATE_CPP_FUNCTION_REPORT";

/// The first byte of a rank's report: the class of its error.
enum class Kind : char {
  config = 'C',
  checkpoint = 'P',
  distributed = 'D',
  data = 'A',
  other = 'E'
};

/// The error that a rank reports through a pipe, which stays open while the
/// rank runs.
class Report final : public detail::EventSource {
 public:
  /// Takes ownership of the pipe.
  explicit Report(int pipe) : pipe_(pipe) {}
  Report(const Report&) = delete;
  Report& operator=(const Report&) = delete;
  ~Report() override {
    if (pipe_ >= 0) ::close(pipe_);
  }

  [[nodiscard]] int descriptor() const override { return pipe_; }
  void read() override {
    char block[4096];
    const ssize_t count = ::read(pipe_, block, sizeof block);
    if (count > 0) {
      text_.append(block, static_cast<std::size_t>(count));
    } else if (count == 0 || errno != EINTR) {
      ::close(std::exchange(pipe_, -1));
    }
  }
  [[nodiscard]] const std::string& text() const { return text_; }

 private:
  int pipe_;
  std::string text_;
};

/// The port and the secret of the store.
struct StorePlace {
  int port = 0;
  std::string secret;
};

std::vector<std::string> own_arguments() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  std::vector<std::string> arguments = detail::split(text, '\0');
  if (!arguments.empty()) arguments.pop_back();
  return arguments;
}

/// The ranks, and their reports in the same order.
class Ranks {
 public:
  Ranks(int num_ranks, const detail::Environment& environment) {
    try {
      board_.emplace(detail::Board::create(
          {.num_pages = num_ranks,
           .world_size = num_ranks,
           .command = detail::join(own_arguments(), " ")}));
    } catch (const detail::SegmentError&) {
      return;  // the ranks do not need it
    }
    monitor_.emplace(*board_, monitor_options(environment));
  }
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  detail::Supervisor supervisor{
      {.on_end = [this](std::size_t rank) { note_end(rank); },
       .interval = detail::HangMonitor::kInterval,
       .on_interval =
           [this] {
             if (monitor_) monitor_->look();
           }}};
  std::vector<std::unique_ptr<Report>> reports;

  /// Empty without a board.
  [[nodiscard]] std::string ticket() const {
    return board_ ? board_->ticket() : std::string();
  }
  [[nodiscard]] std::string describe_end(std::size_t rank) const {
    const detail::Supervisor::Rank& end = supervisor.ranks()[rank];
    return detail::describe_end(
        {end.wait_status,
         end.ended_with,
         board_ && detail::was_killed_for_hang(page_of(rank))});
  }

 private:
  static detail::HangMonitorOptions monitor_options(
      const detail::Environment& environment) {
    const detail::Settings settings = detail::launch_settings(environment);
    const Logger logger(
        standard_error_sink(), parse_log_level(*settings.text("log_level")));
    return {
        .threshold = std::chrono::milliseconds(
            static_cast<std::int64_t>(*settings.number("hang_seconds") * 1000)),
        .on_hang = detail::parse_on_hang(*settings.text("on_hang")),
        .path = environment.get("PATH").value_or(""),
        .say = [logger](const std::string& text) {
          logger.log(LogLevel::warning, "launch", detail::trim(text));
        }};
  }

  [[nodiscard]] detail::BoardPage& page_of(std::size_t rank) const {
    return board_->page(static_cast<int>(rank));
  }
  // Tells the other ranks how one ended.
  void note_end(std::size_t rank) {
    if (!board_) return;
    detail::BoardPage& page = page_of(rank);
    detail::set_text(page.ending, describe_end(rank));
    page.wait_status.store(supervisor.ranks()[rank].wait_status);
    page.has_ended.store(1);
  }

  std::optional<detail::Board> board_;
  std::optional<detail::HangMonitor> monitor_;
};

std::map<std::string, std::string> given_variables(
    const LaunchFunctionOptions& options) {
  std::map<std::string, std::string> all = options.variables;
  if (options.cpu) all.emplace("ACCELERATE_USE_CPU", "true");
  return all;
}

std::vector<std::string> variables_of(
    const LaunchFunctionOptions& options,
    const detail::Environment& environment,
    const Ranks& ranks,
    const StorePlace& store,
    int report) {
  const std::string rank = std::to_string(ranks.reports.size());
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
  for (const auto& [name, value] : given_variables(options)) all[name] = value;
  all["RANK"] = all["LOCAL_RANK"] = rank;
  all["WORLD_SIZE"] = all["LOCAL_WORLD_SIZE"] = size;
  all["MASTER_ADDR"] = "127.0.0.1";
  all["MASTER_PORT"] = std::to_string(store.port);
  all[detail::kStoreSecretVariable] = store.secret;
  // This process hosts the store.
  all["TORCHELASTIC_USE_AGENT_STORE"] = "True";
  if (!ranks.ticket().empty()) {
    all[detail::kBoardVariable] = ranks.ticket();
    all[detail::kBoardPageVariable] = rank;
  }
  all[kNameVariable] = options.name;
  all[kReportVariable] = std::to_string(report);
  std::vector<std::string> lines;
  for (const auto& [name, value] : all) {
    lines.push_back(format("{}={}", name, value));
  }
  return lines;
}

void start_rank(
    Ranks& ranks,
    const LaunchFunctionOptions& options,
    const detail::Environment& environment,
    const StorePlace& store) {
  detail::Pipe pipe;
  detail::ProcessStart start;
  start.program = "/proc/self/exe";
  start.arguments = own_arguments();
  if (options.arguments) {
    start.arguments.resize(1);
    start.arguments.insert(
        start.arguments.end(),
        options.arguments->begin(),
        options.arguments->end());
  }
  start.variables =
      variables_of(options, environment, ranks, store, pipe.write_end());
  start.kept = pipe.write_end();
  const detail::StartedProcess started =
      detail::start_process(std::move(start));
  if (started.problem != 0) {
    throw ConfigError(format(
        "[launch] cannot start this program again: {}",
        std::strerror(started.problem)));
  }
  ranks.reports.push_back(std::make_unique<Report>(pipe.release_read_end()));
  ranks.supervisor.add(started.pid, {ranks.reports.back().get()});
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

// Throws the error of a failed rank, preferably one that did not merely lose a
// peer. Returns if none failed.
void throw_failure(const Ranks& ranks) {
  std::vector<detail::Suspect> suspects;
  // Ranks that the supervisor ended, by any signal, do not count as failures.
  for (const std::size_t rank : ranks.supervisor.failures()) {
    const std::string& report = ranks.reports[rank]->text();
    const bool lost_a_peer = !report.empty() &&
        report.front() == static_cast<char>(Kind::distributed);
    suspects.push_back({.rank = rank, .is_victim = lost_a_peer});
  }
  const std::optional<std::size_t> cause = detail::find_cause(suspects);
  if (!cause) return;
  const std::string& report = ranks.reports[*cause]->text();
  if (report.empty()) {
    throw DistributedError(format(
        "[launch] rank {} of launch_function() {}",
        *cause,
        ranks.describe_end(*cause)));
  }
  throw_as(
      static_cast<Kind>(report.front()),
      format("rank {}: {}", *cause, report.substr(1)));
}

void report(int pipe, Kind kind, const std::string& text) {
  const std::string message = format("{}{}", static_cast<char>(kind), text);
  (void)!::write(pipe, message.data(), message.size());
}

// Runs the function in a rank's process, which ends here.
[[noreturn]] void run_as_rank(const std::function<void()>& function, int pipe) {
  ::fcntl(pipe, F_SETFD, FD_CLOEXEC);
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
    report(
        pipe,
        Kind::other,
        "an exception that is not a std::exception was thrown");
  }
  std::exit(code);
}

}  // namespace

void launch_function(
    const std::function<void()>& function,
    const LaunchFunctionOptions& options) {
  if (options.num_processes < 1) {
    throw ConfigError(format(
        "[launch] num_processes of launch_function() must "
        "be at least 1, but is {}",
        options.num_processes));
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
    const EnvironmentScope scope =
        detail::set_environment(given_variables(options));
    function();
    return;
  }
  const std::string secret = detail::random_token();
  const detail::StoreServer store("127.0.0.1", 0, {.secret = secret});
  detail::Environment settings = environment;
  for (const auto& [name, value] : given_variables(options))
    settings.set(name, value);
  Ranks ranks(options.num_processes, settings);
  try {
    for (int rank = 0; rank < options.num_processes; ++rank) {
      start_rank(ranks, options, environment, {store.port(), secret});
    }
  } catch (...) {
    ranks.supervisor.kill_and_wait();
    throw;
  }
  ranks.supervisor.run();
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
