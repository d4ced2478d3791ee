#include "cli/launch/decision/rank_resources.h"

#include <algorithm>
#include <limits>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "cli/launch/machine/processor_sets.h"

namespace accelerate::cli {

using detail::format;
using detail::Settings;

namespace {

// Whether ranks of this machine compute on the GPUs that the launcher sees.
bool uses_gpus(
    const LaunchDecision& decision,
    const Settings& settings,
    const Machine& machine) {
  if (decision.uses_cpu || machine.gpus.empty()) return false;
  return decision.processes_here() <= machine.num_devices() ||
      settings.boolean("share_devices");
}

}  // namespace

void share_gpus(
    LaunchPlan& plan,
    const LaunchDecision& decision,
    const Settings& settings,
    const Machine& machine) {
  const int here = plan.processes_here();
  const int gpus = machine.num_devices();
  const bool names_gpus =
      gpus > 0 && (decision.asks_for_devices || decision.gpu_ids != "all");
  if (is_python(plan.program) || decision.uses_cpu || here <= std::max(gpus, 1))
    return;
  // Where the launcher sees none, a container may hide them from it.
  if (settings.boolean("share_devices")) {
    if (const auto given = plan.environment.get("NCCL_HOSTID")) {
      throw ConfigError(format(
          "[launch] NCCL_HOSTID must be unset with --share_devices, which "
          "gives each rank its own, but is \"{}\"",
          *given));
    }
    plan.shares_gpus = true;
  } else if (names_gpus) {
    throw ConfigError(format(
        "[launch] each rank must have a GPU of its own, but {} ranks would "
        "start here, which has {}; start fewer, add --cpu, or, for tests, "
        "--share_devices",
        here,
        gpus));
  }
}

void share_cores(
    LaunchPlan& plan,
    const LaunchDecision& decision,
    const Settings& settings,
    const detail::Environment& environment,
    const Machine& machine) {
  const int here = plan.processes_here();
  const std::string affinity = *settings.text("cpu_affinity");
  if (affinity == "auto" || settings.boolean("enable_cpu_affinity")) {
    const auto processors = with_topology(machine.processors);
    if (uses_gpus(decision, settings, machine)) {
      std::vector<std::vector<int>> nearby;
      for (std::size_t rank = 0; rank < static_cast<std::size_t>(here); ++rank)
        nearby.push_back(machine.gpus[rank % machine.gpus.size()].processors);
      plan.processors = share_processors_nearby(nearby, processors);
    }
    if (plan.processors.empty())
      plan.processors = share_processors(processors, here);
  } else if (affinity != "none") {
    plan.processors = parse_processors(affinity, here, machine.processors);
  }
  plan.num_threads = static_cast<int>(std::min<std::int64_t>(
      settings.integer("num_cpu_threads_per_process").value_or(0),
      std::numeric_limits<int>::max()));
  if (plan.num_threads > 0) return;
  if (is_python(plan.program)) {
    plan.num_threads =
        python_threads(decision, settings, environment, machine.physical_cores);
  } else if (here > 1) {
    plan.num_threads = std::max(1, machine.usable_cores / here);
  }
}

}  // namespace accelerate::cli
