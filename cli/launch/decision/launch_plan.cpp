#include "cli/launch/decision/launch_plan.h"

#include <algorithm>
#include <filesystem>
#include <limits>

#include <unistd.h>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "cli/launch/decision/offload_directories.h"
#include "cli/launch/decision/rank_resources.h"
#include "cli/launch/machine/memory_directory.h"
#include "cli/launch/machine/processor_sets.h"
#include "config/rank_variables.h"
#include "config/user_variables.h"

namespace accelerate::cli {

namespace {

using detail::format;
using detail::GivenSetting;
using detail::Settings;

bool is_executable(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::is_regular_file(path, ignored) &&
      access(path.c_str(), X_OK) == 0;
}

Shown shown_of(const std::string& digit) {
  if (digit == "0") return {false, false};
  if (digit == "1") return {true, false};
  if (digit == "2") return {false, true};
  if (digit == "3") return {true, true};
  throw ConfigError(format(
      "[launch] tee must be 0 (nothing), 1 (stdout), 2 (stderr) or 3 (both), "
      "or by local rank, such as 0:3,1:2, but has \"{}\"",
      digit));
}

// Parses "3", or "0:3,1:2"; ranks that are not listed show nothing.
std::vector<Shown> parse_tee(const std::string& text, int num_ranks) {
  std::vector<Shown> shown(static_cast<std::size_t>(num_ranks));
  if (text.find(':') == std::string::npos) {
    std::ranges::fill(shown, shown_of(text));
    return shown;
  }
  std::ranges::fill(shown, Shown{false, false});
  for (const std::string& part : detail::split(text, ',')) {
    const std::size_t colon = part.find(':');
    const auto rank = detail::parse_int(part.substr(0, colon));
    if (colon == std::string::npos || !rank || *rank < 0 ||
        *rank >= num_ranks) {
      throw ConfigError(format(
          "[launch] tee has \"{}\", but must be "
          "LOCAL_RANK:WHAT with ranks 0 to {}",
          part,
          num_ranks - 1));
    }
    shown[static_cast<std::size_t>(*rank)] = shown_of(part.substr(colon + 1));
  }
  return shown;
}

// The given settings on which, according to the table, native programs do not
// act. The library itself reports settings that it would act on but did not.
std::vector<GivenSetting> settings_without_effect(const Settings& settings) {
  std::vector<GivenSetting> found;
  for (GivenSetting& setting : settings.unread()) {
    const detail::OptionUse use = detail::find_option(setting.key)->use;
    if (use == detail::OptionUse::acts || use == detail::OptionUse::launches)
      continue;
    found.push_back(std::move(setting));
  }
  return found;
}

// The launcher's decisions, including an engine chosen by the kind of launch.
// What launch_warnings() reports is marked as reported.
std::string handover_of(
    const LaunchDecision& decision,
    const Settings& settings,
    const std::string& program) {
  std::vector<std::string> reported;
  if (!is_python(program) && !settings.boolean("quiet")) {
    for (const GivenSetting& setting : settings_without_effect(settings))
      reported.push_back(setting.key);
  }
  return detail::to_handover(with_engine(decision, settings), reported);
}

// The fewest ranks of an elastic group, and where it keeps its states.
void make_elastic(LaunchPlan& plan, const Settings& settings) {
  const auto fewest = settings.integer("min_processes");
  const bool wants_copies = settings.text("redundancy") == "neighbour";
  plan.fewest_processes = fewest
      ? static_cast<int>(std::min<std::int64_t>(*fewest, plan.num_processes))
      : plan.num_processes;
  std::vector<std::string> complaints;
  if (fewest && *fewest > plan.num_processes) {
    complaints.push_back(format(
        "[launch] num_processes asks for at least {} processes and at most {}; "
        "write --num_processes MIN:MAX, for example {}:{}",
        *fewest,
        plan.num_processes,
        plan.num_processes,
        *fewest));
  }
  const bool is_elastic = plan.fewest_processes < plan.num_processes;
  const auto refuse_for_python = [&](std::string_view flag,
                                     std::string_view remedy) {
    complaints.push_back(format(
        "[launch] {} is for programs with run_elastic(), but this is a Python "
        "program; {}",
        flag,
        remedy));
  };
  if (!plan.has_board) {
    if (is_elastic)
      refuse_for_python("--num_processes MIN:MAX", "give one number");
    if (wants_copies)
      refuse_for_python("--redundancy neighbour", "leave it out");
    if (settings.text("elastic_batch") == "per_rank")
      refuse_for_python("--elastic_batch per_rank", "leave it out");
  }
  if (plan.has_elastic_machines() && plan.checks_machines) {
    complaints.push_back(
        "[launch] --check measures the connections of all machines before the "
        "start, but with --num_processes MIN:MAX some may join later; leave "
        "one of them out");
  }
  if (!complaints.empty()) throw ConfigError(detail::join(complaints, "\n"));
  if (plan.has_board) plan.memory_directory = memory_directory_of_launcher();
}

std::optional<std::string> find_on_path(
    const std::string& name,
    const detail::Environment& environment) {
  for (const std::string& directory :
       detail::split(environment.get("PATH").value_or(""), ':')) {
    const std::filesystem::path path = std::filesystem::path(directory) / name;
    if (is_executable(path)) return path;
  }
  return std::nullopt;
}

}  // namespace

std::string find_program(
    const std::string& name,
    const detail::Environment& environment) {
  std::error_code ignored;
  if (name.find('/') != std::string::npos) {
    if (is_executable(name)) return name;
    throw ConfigError(format(
        "[launch] program \"{}\" {}",
        name,
        std::filesystem::exists(name, ignored)
            ? "is not an executable file; build it, or chmod +x"
            : "does not exist; check the path"));
  }
  if (const auto path = find_on_path(name, environment)) return *path;
  throw ConfigError(format(
      "[launch] program \"{}\" is not on PATH{}",
      name,
      is_executable(name)
          ? format("; for the one in this directory write ./{}", name)
          : std::string("; write its path")));
}

namespace {

std::string find_interpreter(const detail::Environment& environment) {
  // torchrun's variable.
  if (const auto given = environment.get("PYTHON_EXEC")) return *given;
  for (const char* const name : {"python3", "python"}) {
    if (find_on_path(name, environment)) return name;
  }
  throw ConfigError(
      "[launch] a Python program needs python3, which is not on PATH; install "
      "it, or activate the environment that has it");
}

}  // namespace

std::vector<std::string> with_interpreter(
    const std::vector<std::string>& command,
    const LaunchDecision& decision,
    const Settings& settings,
    const detail::Environment& environment) {
  const bool is_module = settings.boolean("module");
  const bool is_script =
      command.front().ends_with(".py") && !settings.boolean("no_python");
  if (!is_module && !is_script) return command;
  std::error_code ignored;
  if (!is_module && !std::filesystem::exists(command.front(), ignored)) {
    throw ConfigError(format(
        "[launch] program \"{}\" does not exist; check the path",
        command.front()));
  }
  std::vector<std::string> words{find_interpreter(environment)};
  if (decision.num_processes > 1) words.emplace_back("-u");
  if (is_module) words.emplace_back("-m");
  words.insert(words.end(), command.begin(), command.end());
  return words;
}

bool is_python(const std::string& program) {
  const std::string name = std::filesystem::path(program).filename();
  return name.starts_with("python") || name.ends_with(".py");
}

namespace {

void check_counts(const LaunchDecision& decision) {
  if (decision.num_processes % decision.num_machines != 0) {
    throw ConfigError(format(
        "[launch] {} processes cannot be divided equally among {} machines; "
        "change --num_processes, which counts all of them",
        decision.num_processes,
        decision.num_machines));
  }
  if (decision.processes_here() > kMostProcessesHere) {
    throw ConfigError(format(
        "[launch] {} processes would start on one machine, but at most {} can",
        decision.processes_here(),
        kMostProcessesHere));
  }
}

// Sets what every rank gets: this process's variables except a rank's, and what
// `settings` say.
void set_variables(
    LaunchPlan& plan,
    const LaunchDecision& decision,
    const Settings& settings,
    const detail::Environment& environment) {
  std::map<std::string, std::string, std::less<>> shared;
  for (const auto& [name, value] : environment.all()) {
    if (!detail::is_rank_variable(name)) shared.emplace(name, value);
  }
  plan.environment = detail::Environment(std::move(shared));
  const auto add = [&](const std::string& name, const std::string& value) {
    plan.environment.set(name, value);
    plan.added.push_back(format("{}={}", name, value));
  };
  const auto variables = is_python(plan.program)
      ? python_variables(decision, settings, environment)
      : native_variables(decision, settings, environment);
  for (const auto& [name, value] : variables) {
    // With these, Intel's OpenMP would bind all ranks to the same cores.
    if (name.starts_with("KMP_") && !plan.is_alone) continue;
    add(name, value);
  }
  add(std::string(detail::kHandoverVariable),
      handover_of(decision, settings, plan.program));
  if (plan.num_threads > 0) {
    add("OMP_NUM_THREADS", std::to_string(plan.num_threads));
  }
}

}  // namespace

LaunchPlan make_launch_plan(
    const LaunchDecision& decision,
    const Settings& settings,
    const detail::Environment& environment,
    const Machine& machine,
    const std::vector<std::string>& command) {
  check_counts(decision);
  LaunchPlan plan;
  plan.program = find_program(command.front(), environment);
  plan.arguments = command;
  plan.num_processes = decision.num_processes;
  plan.num_machines = decision.num_machines;
  plan.machine_rank = decision.machine_rank;
  plan.address = decision.address.value_or("127.0.0.1");
  if (plan.num_processes > 1 || decision.port) {
    plan.port = decision.port.value_or(0);
  }
  if (plan.num_machines > 1 && (!decision.address || plan.port == 0)) {
    throw ConfigError(
        "[launch] several machines must all know the address and port of rank "
        "0, and the port cannot be a free one; pass --main_process_ip and "
        "--main_process_port");
  }
  if (plan.num_machines > 1)
    plan.given_secret = detail::read_store_secret(environment);
  plan.is_alone = plan.num_processes == 1 && is_python(plan.program);
  share_cores(plan, decision, settings, environment, machine);
  plan.role = *settings.text("role");
  plan.log_dir = settings.text("log_dir");
  plan.shown = parse_tee(
      settings.is_given("tee") ? *settings.text("tee") : "3",
      plan.processes_here());
  plan.max_restarts = static_cast<int>(std::min<std::int64_t>(
      *settings.integer("max_restarts"), std::numeric_limits<int>::max()));
  plan.is_quiet = settings.boolean("quiet");
  plan.checks_machines = settings.boolean("check");
  plan.grace = std::chrono::milliseconds(
      static_cast<std::int64_t>(*settings.number("grace_seconds") * 1000));
  plan.has_board = !is_python(plan.program);
  make_elastic(plan, settings);
  plan.hang_threshold = std::chrono::milliseconds(
      static_cast<std::int64_t>(*settings.number("hang_seconds") * 1000));
  plan.on_hang = detail::parse_on_hang(*settings.text("on_hang"));
  set_variables(plan, decision, settings, environment);
  share_gpus(plan, decision, settings, machine);
  return plan;
}

std::vector<std::string> rank_variables(
    const LaunchPlan& plan,
    int local_rank,
    int attempt,
    const StorePlace& store,
    std::optional<RankPlace> place) {
  std::vector<std::string> own{
      format("TORCHELASTIC_RESTART_COUNT={}", attempt),
      format("TORCHELASTIC_MAX_RESTARTS={}", plan.max_restarts)};
  const auto add = [&](const char* name, const auto& value) {
    own.push_back(format("{}={}", name, value));
  };
  if (plan.is_alone) return own;
  // A process of an elastic group keeps it when ranks are numbered anew.
  if (plan.shares_gpus) {
    add("NCCL_HOSTID",
        format("machine{}-process{}", plan.machine_rank, local_rank));
  }
  const int rank = place ? place->rank : plan.rank_of(local_rank);
  const int num_ranks = place ? place->num_ranks : plan.num_processes;
  add("RANK", rank);
  add("LOCAL_RANK", local_rank);
  add("WORLD_SIZE", num_ranks);
  add("LOCAL_WORLD_SIZE", plan.processes_here());
  add("GROUP_RANK", plan.machine_rank);
  add("GROUP_WORLD_SIZE", plan.num_machines);
  add("ROLE_RANK", rank);
  add("ROLE_WORLD_SIZE", num_ranks);
  add("ROLE_NAME", plan.role);
  if (!plan.port) return own;
  // The launcher hosts the store, like torchrun's agent.
  add("MASTER_ADDR", plan.address);
  add("MASTER_PORT", store.port);
  if (!store.secret.empty()) add(detail::kStoreSecretVariable, store.secret);
  add("TORCHELASTIC_USE_AGENT_STORE", "True");
  add("TORCHELASTIC_RUN_ID", "none");
  return own;
}

namespace {

// If there are more ranks, only the first ones and the last are listed.
constexpr int kMostDescribedRanks = 64;

std::string describe_rank(const LaunchPlan& plan, int local_rank) {
  std::string out = format("rank {}:\n", plan.rank_of(local_rank));
  for (const std::string& line :
       rank_variables(plan, local_rank, 0, {plan.port.value_or(0), {}})) {
    out += format(
        "  {}\n", line == "MASTER_PORT=0" ? "MASTER_PORT=(a free one)" : line);
  }
  if (!plan.processors.empty()) {
    out += format(
        "  processors: {}\n",
        format_processors(
            plan.processors[static_cast<std::size_t>(local_rank)]));
  }
  return out;
}

}  // namespace

std::string describe(const LaunchPlan& plan, const Settings& settings) {
  std::string out = format("command: {}\n", detail::join(plan.arguments, " "));
  out += format("program: {}\n", plan.program);
  out += format("every rank:\n  {}\n", detail::join(plan.added, "\n  "));
  if (plan.fewest_processes < plan.num_processes) {
    out += format(
        "ranks: {}, and no fewer than {}\n",
        plan.num_processes,
        plan.fewest_processes);
  }
  const int count = plan.processes_here();
  for (int i = 0; i < count; ++i) {
    if (i == kMostDescribedRanks - 1 && count > kMostDescribedRanks) {
      const int last = count - 1;
      out += format("... {} more ranks ...\n", last - i);
      i = last;
    }
    out += describe_rank(plan, i);
  }
  return out + "settings:\n" + settings.explain() +
      detail::explain_nccl_variables(plan.environment);
}

std::vector<std::string> launch_warnings(
    const Settings& settings,
    const std::string& program) {
  if (is_python(program)) return {};
  std::vector<std::string> later, never, unused;
  for (const GivenSetting& setting : settings_without_effect(settings)) {
    const std::string words = format("{} ({})", setting.key, setting.where);
    switch (detail::find_option(setting.key)->use) {
      case detail::OptionUse::carried:
        later.push_back(words);
        break;
      case detail::OptionUse::python_only:
        never.push_back(words);
        break;
      default:
        unused.push_back(words);
        break;
    }
  }
  std::vector<std::string> lines;
  const auto add = [&](std::string_view problem,
                       const std::vector<std::string>& words) {
    if (!words.empty())
      lines.push_back(format("{}: {}", problem, detail::join(words, ", ")));
  };
  add("passed on, but without effect on programs of this "
      "version of the library",
      later);
  add("only for Python programs, which this is not", never);
  add("without effect, since this launcher does not work as torchrun does",
      unused);
  return lines;
}

}  // namespace accelerate::cli
