#include "cli/launch/ranks/rank_process.h"

#include <cerrno>
#include <string_view>
#include <utility>
#include <vector>

#include <sched.h>
#include <unistd.h>

#include "base/text/text.h"
#include "cli/processes/failure.h"
#include "config/rank_variables.h"
#include "launch/processes/start_process.h"

namespace accelerate::cli {

namespace {

using detail::format;

// A prefix such as "[worker 3] ", in a colour per rank on a terminal.
std::string prefix_of(const LaunchPlan& plan, int rank, int target) {
  std::string name = std::to_string(rank);
  if (plan.role != "default") {
    name = format("{} {}", detail::printable(plan.role), rank);
  }
  if (!isatty(target) || plan.environment.has("NO_COLOR")) {
    return format("[{}] ", name);
  }
  constexpr int kColours = 6, kFirstColour = 31;
  return format("\033[{}m[{}]\033[0m ", kFirstColour + rank % kColours, name);
}

// Processes that occupy a seat one after another each get their own file.
OutputTarget open_log(
    const LaunchPlan& plan,
    int rank,
    const StartOptions& options,
    const char* name,
    LaunchOutput& output) {
  if (!plan.log_dir) return {};
  const bool is_first = options.attempt == 0 && options.first_generation == 1;
  return output.open_log(
      format(
          "{}/attempt_{}{}/{}/{}",
          *plan.log_dir,
          options.attempt,
          options.first_generation > 1
              ? format("_generation_{}", options.first_generation)
              : std::string(),
          rank,
          name),
      // Later the supervisor must not wait for a disk.
      /*must_open=*/is_first);
}

std::optional<cpu_set_t> processors_of(const LaunchPlan& plan, int local_rank) {
  if (plan.processors.empty()) return std::nullopt;
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int each : plan.processors[static_cast<std::size_t>(local_rank)]) {
    if (each < CPU_SETSIZE) CPU_SET(each, &set);
  }
  return set;
}

std::vector<std::string> variables_of(
    const LaunchPlan& plan,
    int local_rank,
    const StartOptions& options) {
  std::vector<std::string> variables = rank_variables(
      plan, local_rank, options.attempt, options.store, options.place);
  const auto add = [&](std::string_view name, const auto& value) {
    variables.push_back(format("{}={}", name, value));
  };
  if (!options.board.empty()) {
    add(detail::kBoardVariable, options.board);
    add(detail::kBoardPageVariable, local_rank);
  }
  if (options.first_generation > 1)
    add(detail::kFirstGenerationVariable, options.first_generation);
  if (!plan.memory_directory.empty())
    add(detail::kMemoryDirectoryVariable, plan.memory_directory);
  for (const auto& [name, value] : plan.environment.all()) add(name, value);
  return variables;
}

}  // namespace

void StartReport::close() {
  if (pipe_ >= 0) ::close(std::exchange(pipe_, -1));
}

void StartReport::read() {
  int problem = 0;
  const ssize_t count = ::read(pipe_, &problem, sizeof problem);
  if (count < 0 && errno == EINTR) return;
  if (count == static_cast<ssize_t>(sizeof problem)) problem_ = problem;
  close();
}

ConfigError start_error(const LaunchPlan& plan, int problem) {
  return ConfigError(format(
      "[launch] cannot start \"{}\": {}",
      plan.program,
      describe_start_problem(problem)));
}

std::unique_ptr<RankProcess> start_rank(
    const LaunchPlan& plan,
    int local_rank,
    const StartOptions& options,
    LaunchOutput& output) {
  detail::ProcessStart start;
  start.program = plan.program;
  start.arguments = plan.arguments;
  start.variables = variables_of(plan, local_rank, options);
  start.resets_signals = true;
  const auto processors = processors_of(plan, local_rank);
  if (processors) start.processors = &*processors;

  auto process = std::make_unique<RankProcess>();
  const int number = plan.rank_of(local_rank);
  process->rank = options.place ? options.place->rank : number;
  process->seat = local_rank;
  std::optional<detail::Pipe> out, err;
  if (options.is_isolated) {
    out.emplace();
    err.emplace();
    start.out = out->write_end();
    start.err = err->write_end();
    const Shown shown = plan.shown[static_cast<std::size_t>(local_rank)];
    const auto targets = [&](bool is_shown, int target, const char* log) {
      return RankStream::Targets{
          .shown =
              is_shown || !plan.log_dir ? output.of(target) : OutputTarget(),
          .log = open_log(plan, number, options, log, output)};
    };
    RankStream::Targets to_out =
        targets(shown.out, STDOUT_FILENO, "stdout.log");
    RankStream::Targets to_err =
        targets(shown.err, STDERR_FILENO, "stderr.log");
    process->out = RankStream(
        out->release_read_end(),
        std::move(to_out),
        prefix_of(plan, number, STDOUT_FILENO));
    process->err = RankStream(
        err->release_read_end(),
        std::move(to_err),
        prefix_of(plan, number, STDERR_FILENO),
        &process->last_output);
  }
  detail::BegunProcess begun = detail::begin_process(std::move(start));
  if (begun.problem != 0) throw start_error(plan, begun.problem);
  process->pid = begun.pid;
  process->start.listen(begun.report.release_read_end());
  return process;
}

}  // namespace accelerate::cli
