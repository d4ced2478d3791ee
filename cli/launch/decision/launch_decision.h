#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "config/environment.h"
#include "config/files/config_document.h"
#include "config/settings.h"

namespace accelerate::cli {

/// Larger launches, or more ranks on a machine, are rejected.
inline constexpr int kMostProcesses = 1'000'000;
inline constexpr int kMostProcessesHere = 4096;

/// Accelerate's kinds of launch.
enum class Paradigm { simple, multi_device, fsdp, megatron, deepspeed, tpu };

/// The programs that a launch can start.
enum class ProgramKind {
  python,  ///< a script of Accelerate, launched by its rules exactly
  native,  ///< any other program, such as one of this library
};

/// The launch that the settings describe, by Accelerate's rules.
struct LaunchDecision {
  Paradigm paradigm = Paradigm::simple;
  ProgramKind kind = ProgramKind::python;
  /// The origin of a paradigm that no flag chose, such as "file run.yaml".
  std::string engine_where;
  bool uses_cpu = false;
  /// True if Accelerate splits the cores among the ranks: if the file or,
  /// without one, the flag says to use the CPU.
  bool shares_cores = false;
  bool uses_parallelism_config = false;
  /// Number of processes on all machines together.
  int num_processes = 1;
  int num_machines = 1;
  int machine_rank = 0;
  std::optional<std::string> address;
  /// 0: any free port.
  std::optional<int> port;
  std::string gpu_ids = "all";
  /// The variable by which ranks see only these devices.
  std::string devices_variable = "CUDA_VISIBLE_DEVICES";
  /// True if a flag or the file says that ranks compute on devices.
  bool asks_for_devices = false;
  std::optional<std::string> mpi_hostfile;
  /// Keys of the file's deepspeed_config, for ACCELERATE_CONFIG_DS_FIELDS.
  std::vector<std::string> deepspeed_fields;

  [[nodiscard]] int processes_here() const {
    return num_processes / num_machines;
  }
};

/// The keys in a config file's `values` that a DeepSpeed configuration also
/// has, for ACCELERATE_CONFIG_DS_FIELDS.
std::vector<std::string> deepspeed_fields(
    const detail::Settings& settings,
    const detail::ConfigJson& values);

/// `file` is the source of `settings`, or null. Throws one ConfigError listing
/// flags that exclude each other and missing settings. Native programs can
/// shard on the CPU, which Accelerate's rules exclude.
LaunchDecision decide_launch(
    const detail::Settings& settings,
    const detail::ConfigDocument* file,
    int num_devices,
    ProgramKind kind = ProgramKind::python);

/// The variables that Accelerate's own library reads, as `accelerate launch`
/// exports them. `environment` is the program's environment without them.
std::map<std::string, std::string> python_variables(
    const LaunchDecision& decision,
    const detail::Settings& settings,
    const detail::Environment& environment);

/// The subset given by a flag, a variable or a file, or implied by the kind of
/// launch: programs of this library have their own defaults.
std::map<std::string, std::string> native_variables(
    const LaunchDecision& decision,
    const detail::Settings& settings,
    const detail::Environment& environment);

/// The number of threads that Accelerate gives a Python process.
int python_threads(
    const LaunchDecision& decision,
    const detail::Settings& settings,
    const detail::Environment& environment,
    int physical_cores);

}  // namespace accelerate::cli
