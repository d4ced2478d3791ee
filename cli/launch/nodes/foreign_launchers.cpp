#include "cli/launch/nodes/foreign_launchers.h"

#include <array>
#include <string_view>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "cli/launch/decision/launch_plan.h"
#include "cli/processes/run_program.h"

namespace accelerate::cli {

namespace {

constexpr int kDefaultPort = 29500;

std::string multinode_launcher(const detail::Settings& settings) {
  return settings.text("deepspeed_multinode_launcher").value_or("pdsh");
}

/// The program that starts the ranks.
enum class Starter { this_launcher, mpi, deepspeed, remote_shell };

struct StartRow {
  std::string_view key;
  Starter starter;
};

// The settings on which only one of them acts.
constexpr std::array kStartRows{
    StartRow{"cpu_affinity", Starter::this_launcher},
    StartRow{"enable_cpu_affinity", Starter::this_launcher},
    StartRow{"check", Starter::this_launcher},
    StartRow{"log_dir", Starter::this_launcher},
    StartRow{"tee", Starter::this_launcher},
    StartRow{"role", Starter::this_launcher},
    StartRow{"max_restarts", Starter::this_launcher},
    StartRow{"min_processes", Starter::this_launcher},
    StartRow{"remote_shell", Starter::remote_shell},
    StartRow{"mpirun_hostfile", Starter::mpi},
    StartRow{"deepspeed_hostfile", Starter::deepspeed},
    StartRow{"deepspeed_exclusion_filter", Starter::deepspeed},
    StartRow{"deepspeed_inclusion_filter", Starter::deepspeed},
    StartRow{"deepspeed_multinode_launcher", Starter::deepspeed}};

Starter starter_of(
    const LaunchDecision& decision,
    const detail::Settings& settings) {
  if (!is_left_to_others(decision, settings)) return Starter::this_launcher;
  return decision.paradigm == Paradigm::deepspeed ? Starter::deepspeed
                                                  : Starter::mpi;
}

}  // namespace

bool is_left_to_others(
    const LaunchDecision& decision,
    const detail::Settings& settings) {
  if (decision.paradigm == Paradigm::deepspeed) {
    // Native programs need no Python, unless a launcher is named explicitly.
    const bool is_named = decision.kind == ProgramKind::python ||
        settings.is_given("deepspeed_multinode_launcher");
    return decision.num_machines > 1 && is_named &&
        multinode_launcher(settings) != "standard";
  }
  return decision.paradigm == Paradigm::simple && decision.mpi_hostfile;
}

std::vector<std::string> warnings_of_start(
    const LaunchDecision& decision,
    const detail::Settings& settings,
    const std::string& program) {
  const Starter starter = starter_of(decision, settings);
  // This setting chooses between the two.
  const bool chooses_deepspeed =
      decision.paradigm == Paradigm::deepspeed && decision.num_machines > 1;
  std::vector<std::string> unused;
  for (const StartRow& row : kStartRows) {
    if (row.starter == starter || !settings.is_requested(row.key)) continue;
    if (row.key == "deepspeed_multinode_launcher" && chooses_deepspeed)
      continue;
    // Accelerate binds its own ranks.
    if (row.key == "enable_cpu_affinity" && is_python(program)) continue;
    const detail::Resolved& given = *settings.find(row.key);
    unused.push_back(detail::format("{} ({})", row.key, given.where));
  }
  std::vector<std::string> lines;
  // Without files, everything is shown.
  if (starter == Starter::this_launcher && settings.is_given("tee") &&
      !settings.is_given("log_dir")) {
    const detail::Resolved& tee = *settings.find("tee");
    if (tee.text != "0" && tee.text != "3") {
      lines.push_back(detail::format(
          "without effect, since there is no log_dir: tee ({})", tee.where));
    }
  }
  if (unused.empty()) return lines;
  lines.push_back(detail::format(
      "without effect, since {} starts the ranks: {}",
      starter == Starter::mpi             ? "mpirun"
          : starter == Starter::deepspeed ? "DeepSpeed's launcher"
                                          : "this launcher itself",
      detail::join(unused, ", ")));
  return lines;
}

MpiLauncher find_mpi(const detail::Environment& environment) {
  for (const char* const name : {"mpirun", "mpiexec"}) {
    MpiLauncher found;
    found.name = name;
    try {
      found.program = find_program(name, environment);
    } catch (const ConfigError&) {
      continue;
    }
    const Output output = run_program({found.program, "--version"});
    const std::string text = output.out + output.err;
    found.is_open_mpi = text.find("Open MPI") != std::string::npos ||
        text.find("OpenRTE") != std::string::npos;
    return found;
  }
  throw ConfigError(
      "[launch] mpirun_hostfile needs MPI, but neither mpirun nor mpiexec is "
      "on PATH; install Open MPI or MPICH, or pass --hostfile instead");
}

std::vector<std::string> mpi_command(
    const LaunchDecision& decision,
    const MpiLauncher& mpi) {
  const std::string total = std::to_string(decision.num_processes);
  const std::string here = std::to_string(decision.processes_here());
  if (mpi.is_open_mpi) {
    return {
        mpi.name,
        "--hostfile",
        *decision.mpi_hostfile,
        "--npernode",
        here,
        "-n",
        total,
        "--bind-to",
        "socket"};
  }
  return {mpi.name, "-f", *decision.mpi_hostfile, "-ppn", here, "-n", total};
}

std::vector<std::string> deepspeed_command(
    const LaunchDecision& decision,
    const detail::Settings& settings) {
  std::vector<std::string> arguments{
      "deepspeed",
      "--hostfile",
      settings.text("deepspeed_hostfile").value_or("None")};
  const std::string launcher = multinode_launcher(settings);
  if (launcher == "nossh") {
    arguments.insert(
        arguments.end(),
        {"--node_rank", std::to_string(decision.machine_rank), "--no_ssh"});
  } else {
    arguments.insert(
        arguments.end(), {"--no_local_rank", "--launcher", launcher});
  }
  if (const auto excluded = settings.text("deepspeed_exclusion_filter")) {
    arguments.insert(arguments.end(), {"--exclude", *excluded});
  } else if (
      const auto included = settings.text("deepspeed_inclusion_filter")) {
    arguments.insert(arguments.end(), {"--include", *included});
  } else {
    arguments.insert(
        arguments.end(),
        {"--num_gpus", std::to_string(decision.processes_here())});
  }
  if (decision.address) {
    arguments.insert(arguments.end(), {"--master_addr", *decision.address});
  }
  arguments.insert(
      arguments.end(),
      {"--master_port", std::to_string(decision.port.value_or(kDefaultPort))});
  return arguments;
}

}  // namespace accelerate::cli
