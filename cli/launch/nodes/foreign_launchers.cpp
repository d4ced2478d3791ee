#include "cli/launch/nodes/foreign_launchers.h"

#include <accelerate/error.h>

#include "cli/launch/decision/launch_plan.h"
#include "cli/run_program.h"

namespace accelerate::cli {

namespace {

constexpr int kDefaultPort = 29500;

std::string multinode_launcher(const detail::Settings& settings) {
  return settings.text("deepspeed_multinode_launcher").value_or("pdsh");
}

}  // namespace

bool is_left_to_others(
    const LaunchDecision& decision,
    const detail::Settings& settings) {
  if (decision.paradigm == Paradigm::deepspeed) {
    return decision.num_machines > 1 &&
        multinode_launcher(settings) != "standard";
  }
  return decision.paradigm == Paradigm::simple && decision.mpi_hostfile;
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
      "[launch] mpirun_hostfile asks for MPI, but neither mpirun nor mpiexec "
      "is on PATH; install Open MPI or MPICH, or give --hostfile instead");
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
  std::vector<std::string> words{
      "deepspeed",
      "--hostfile",
      settings.text("deepspeed_hostfile").value_or("None")};
  const std::string launcher = multinode_launcher(settings);
  if (launcher == "nossh") {
    words.insert(
        words.end(),
        {"--node_rank", std::to_string(decision.machine_rank), "--no_ssh"});
  } else {
    words.insert(words.end(), {"--no_local_rank", "--launcher", launcher});
  }
  if (const auto excluded = settings.text("deepspeed_exclusion_filter")) {
    words.insert(words.end(), {"--exclude", *excluded});
  } else if (
      const auto included = settings.text("deepspeed_inclusion_filter")) {
    words.insert(words.end(), {"--include", *included});
  } else {
    words.insert(
        words.end(), {"--num_gpus", std::to_string(decision.processes_here())});
  }
  if (decision.address) {
    words.insert(words.end(), {"--master_addr", *decision.address});
  }
  words.insert(
      words.end(),
      {"--master_port", std::to_string(decision.port.value_or(kDefaultPort))});
  return words;
}

}  // namespace accelerate::cli
