#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <CLI/CLI.hpp>

#include <accelerate/error.h>

#include "base/files/files.h"
#include "base/process/exec_pointers.h"
#include "base/text/text.h"
#include "cli/launch/decision/launch_decision.h"
#include "cli/launch/decision/launch_flags.h"
#include "cli/launch/decision/launch_plan.h"
#include "cli/launch/decision/offload_directories.h"
#include "cli/launch/launcher.h"
#include "cli/launch/nodes/foreign_launchers.h"
#include "cli/launch/nodes/hosts.h"
#include "cli/processes/run_program.h"
#include "cli/tool/commands.h"
#include "config/files/config_file.h"
#include "config/machine_variables.h"

namespace accelerate::cli {

namespace {

using detail::format;

// The flag that chooses an engine, and the group of that engine's flags; empty
// if it has none.
struct Choice {
  const char* flag;
  std::string_view group;
};

constexpr std::array<Choice, 7> kChoices{{
    {"--cpu", ""},
    {"--multi_gpu", ""},
    {"--use_fsdp", "FSDP"},
    {"--use_deepspeed", "DeepSpeed"},
    {"--use_megatron_lm", "Megatron-LM"},
    {"--use_parallelism_config", "Parallelism"},
    {"--tpu", "Only for Python programs"},
}};

bool is_given(const CLI::App& app, const char* flag) {
  const CLI::Option* const option = app.get_option_no_throw(flag);
  return option != nullptr && option->count() > 0;
}

// The help of `launch`. As with Accelerate, --help beside a flag that chooses
// how to train, such as --multi_gpu or --use_fsdp, leaves out the flags of
// engines that were not chosen, and says so.
class LaunchHelp final : public CLI::Formatter {
 public:
  std::string make_help(
      const CLI::App* app,
      std::string name,
      CLI::AppFormatMode mode) const override {
    left_out_.clear();
    const auto is_chosen = [&](const Choice& choice) {
      return is_given(*app, choice.flag);
    };
    if (std::ranges::any_of(kChoices, is_chosen)) {
      for (const Choice& choice : kChoices) {
        if (!choice.group.empty() && !is_chosen(choice))
          left_out_.emplace_back(choice.group);
      }
    }
    std::string text = Formatter::make_help(app, std::move(name), mode);
    if (!left_out_.empty()) {
      text += format(
          "\nLeft out: {}. For all flags: accelerate-cpp launch --help\n",
          detail::join(left_out_, ", "));
    }
    return text;
  }

  std::string make_group(
      std::string group,
      bool is_positional,
      std::vector<const CLI::Option*> options) const override {
    if (std::ranges::find(left_out_, group) != left_out_.end()) return {};
    return Formatter::make_group(
        std::move(group), is_positional, std::move(options));
  }

 private:
  // The groups that the help in progress leaves out.
  mutable std::vector<std::string> left_out_;
};

void warn(const std::string& line) {
  std::fprintf(stderr, "accelerate-cpp: warning: %s\n", line.c_str());
}

// Reads the file named by --config_file, otherwise Accelerate's default file if
// it exists and --cpu was not given.
std::optional<detail::ConfigDocument> find_config(
    const LaunchFlags& flags,
    const detail::Source& given,
    const detail::Environment& environment) {
  if (!flags.config_file().empty()) {
    return detail::read_config_document(flags.config_file());
  }
  if (given.values.contains("use_cpu")) return std::nullopt;
  const detail::DefaultConfig usual = detail::find_default_config(environment);
  if (!usual.problem.empty()) {
    if (!given.values.contains("quiet")) {
      warn(format(
          "the default config file {} cannot be read: {}; launching without it",
          usual.path.string(),
          usual.problem));
    }
    return std::nullopt;
  }
  if (!usual.exists) return std::nullopt;
  return detail::read_config_document(usual.path);
}

void require_launchable(
    const LaunchDecision& decision,
    const detail::Settings& settings) {
  if (settings.boolean("module") && settings.boolean("no_python")) {
    throw ConfigError(
        "[launch] --module and --no_python exclude each other: a module needs "
        "python3 -m; give one of them");
  }
  if (decision.paradigm == Paradigm::tpu) {
    throw ConfigError(
        "[launch] TPUs need torch_xla, which exists for Python alone: launch "
        "with Accelerate's own launcher, or without --tpu");
  }
}

// Replaces this process with a foreign launcher.
int become_foreign_launcher(
    const LaunchDecision& decision,
    const detail::Settings& settings,
    const LaunchPlan& plan,
    bool is_dry_run,
    const detail::Environment& environment) {
  std::string program;
  std::vector<std::string> command;
  if (decision.paradigm == Paradigm::deepspeed) {
    command = deepspeed_command(decision, settings);
    command.emplace_back("--no_python");
    program = find_program(command.front(), environment);
  } else {
    const MpiLauncher mpi = find_mpi(environment);
    command = mpi_command(decision, mpi);
    program = mpi.program;
  }
  command.insert(command.end(), plan.arguments.begin(), plan.arguments.end());
  detail::Environment variables = plan.environment;
  if (decision.address) variables.set("MASTER_ADDR", *decision.address);
  if (decision.port) {
    variables.set("MASTER_PORT", std::to_string(*decision.port));
  }
  if (is_dry_run) {
    std::printf(
        "command: %s\nvariables:\n  %s\nsettings:\n%s",
        detail::join(command, " ").c_str(),
        detail::join(plan.added, "\n  ").c_str(),
        settings.explain().c_str());
    return 0;
  }
  std::vector<std::string> lines;
  for (const auto& [name, value] : variables.all()) {
    lines.push_back(format("{}={}", name, value));
  }
  execve(
      program.c_str(),
      detail::exec_pointers(command).data(),
      detail::exec_pointers(lines).data());
  throw ConfigError(
      format("[launch] cannot start {}: {}", program, std::strerror(errno)));
}

std::vector<std::string> retired_warnings(const detail::ConfigDocument& file) {
  const std::vector<std::string> keys = detail::retired_keys(file);
  if (keys.empty()) return {};
  return {
      format("no longer in Accelerate, ignored: {}", detail::join(keys, ", "))};
}

// Prints one line, however many settings of a config file have no effect here.
void warn_of_idle_settings(
    const std::vector<std::vector<std::string>>& warnings) {
  std::vector<std::string> all;
  for (const auto& some : warnings)
    all.insert(all.end(), some.begin(), some.end());
  if (!all.empty()) warn(detail::join(all, "; "));
}

void warn_of_flags_beside_hosts(const detail::Settings& settings) {
  if (settings.boolean("quiet")) return;
  for (const char* const key : {"num_machines", "machine_rank"}) {
    const detail::Resolved& found = *settings.find(key);
    if (found.origin != detail::Origin::flag) continue;
    warn(format(
        "without effect, since the host file says it: {} ({})",
        key,
        found.where));
  }
}

// Starts one launcher per host of the host file.
int launch_on_hosts(
    const LaunchFlags& flags,
    const detail::Settings& settings,
    const std::vector<std::string>& command) {
  warn_of_flags_beside_hosts(settings);
  if (settings.is_given("min_processes")) {
    throw ConfigError(
        "[launch] the launchers of a host file are started and ended together, "
        "but with --num_processes MIN:MAX they may come and go; start one on "
        "each machine, with --num_machines and "
        "--machine_rank, or pass one number");
  }
  HostLaunch launch;
  launch.hosts =
      parse_hosts(detail::read_file_or_pipe(*settings.text("hostfile")));
  const auto hosts = static_cast<int>(launch.hosts.size());
  const int slots = launch.hosts.front().slots;
  const auto given = settings.integer("num_processes");
  if (!given && slots == 0) {
    throw ConfigError(
        "[launch] the host file lacks slots=N; add them, or pass "
        "--num_processes for all hosts together");
  }
  launch.num_processes = given ? static_cast<int>(*given) : hosts * slots;
  launch.tool = own_path().string();
  launch.directory = std::filesystem::current_path().string();
  launch.shell = *settings.text("remote_shell");
  launch.address =
      settings.text("main_process_ip").value_or(launch.hosts.front().name);
  if (hosts > 1 && launch.address == "localhost") {
    throw ConfigError(
        "[launch] the first host of the file is localhost, which means another "
        "machine on the others; use its name, or pass --main_process_ip");
  }
  launch.port =
      static_cast<int>(settings.integer("main_process_port").value_or(29500));
  launch.flags = flags.arguments_without(
      {"hostfile",
       "remote_shell",
       "num_machines",
       "num_processes",
       "machine_rank",
       "main_process_ip",
       "main_process_port"});
  launch.program = command;
  const auto commands = host_commands(launch);
  if (flags.is_dry_run()) {
    for (const auto& host_command : commands) {
      std::string line;
      for (const std::string& argument : host_command)
        line += quoted(argument) + " ";
      std::printf("%s\n", line.c_str());
    }
    return 0;
  }
  return run_commands(commands);
}

// The launcher's variables, with the devices that --gpu_ids leaves to ranks.
detail::Environment ranks_see(
    const detail::Settings& settings,
    detail::Environment environment) {
  const std::string ids = settings.text("gpu_ids").value_or("all");
  if (ids != "all") environment.set("CUDA_VISIBLE_DEVICES", ids);
  return environment;
}

int launch_program(const LaunchFlags& flags) {
  const std::vector<std::string> command = flags.program();
  const detail::Environment environment = detail::Environment::current();
  std::vector<detail::Source> sources{flags.source()};
  const auto file = find_config(flags, sources.front(), environment);
  sources.push_back(detail::source_from_environment(environment));
  sources.push_back(detail::source_from_scheduler(environment));
  if (file) sources.push_back(detail::source_from_config(*file));
  const detail::Settings settings = detail::resolve(sources);
  if (settings.text("hostfile")) {
    return launch_on_hosts(flags, settings, command);
  }
  const bool is_for_python =
      settings.boolean("module") || is_python(command.front());
  const Machine machine = look_at_machine(ranks_see(settings, environment));
  // Accelerate counts the devices that its launcher sees.
  const int num_devices = is_for_python
      ? look_at_machine(environment).num_devices()
      : machine.num_devices();
  const int devices =
      settings.boolean("use_cpu") ? 1 : std::max(num_devices, 1);
  const LaunchDecision decision = decide_launch(
      settings,
      file ? &*file : nullptr,
      devices,
      is_for_python ? ProgramKind::python : ProgramKind::native);
  require_launchable(decision, settings);
  const LaunchPlan plan = make_launch_plan(
      decision,
      settings,
      environment,
      machine,
      with_interpreter(command, decision, settings, environment));
  if (!is_python(plan.program))
    require_offload_directories(decision, settings, environment);
  if (!settings.boolean("quiet")) {
    warn_of_idle_settings(
        {launch_warnings(settings, plan.program),
         warnings_of_start(decision, settings, plan.program),
         file ? retired_warnings(*file) : std::vector<std::string>()});
  }
  if (is_left_to_others(decision, settings)) {
    return become_foreign_launcher(
        decision, settings, plan, flags.is_dry_run(), environment);
  }
  if (flags.is_dry_run()) {
    std::fputs(
        detail::printable_lines(describe(plan, settings)).c_str(), stdout);
    return 0;
  }
  return run_ranks(plan);
}

}  // namespace

std::vector<std::string> without_separator(
    const CLI::App& tool,
    std::vector<std::string> words) {
  if (words.empty() || words.front() != "launch") return words;
  const CLI::App& launch = *tool.get_subcommand("launch");
  for (auto word = words.begin() + 1; word != words.end(); ++word) {
    if (*word == "--") {
      words.erase(word);
      break;
    }
    if (!word->starts_with("-")) break;
    const CLI::Option* const option = launch.get_option_no_throw(*word);
    const bool takes_next_word =
        option != nullptr && option->get_items_expected_max() > 0;
    if (takes_next_word && ++word == words.end()) break;
  }
  return words;
}

RunCommand add_launch_command(CLI::App& tool) {
  CLI::App* launch = tool.add_subcommand(
      "launch", "start a program on one or several processes");
  launch->footer(
      "Then PROGRAM and its own arguments: accelerate-cpp launch [flags] "
      "PROGRAM [arguments]");
  launch->prefix_command();
  auto flags = std::make_shared<LaunchFlags>(*launch);
  launch->formatter(std::make_shared<LaunchHelp>());
  return [flags] { return launch_program(*flags); };
}

}  // namespace accelerate::cli
