#include "config/machine_variables.h"

#include <optional>

#include "base/text/text.h"
#include "config/rank_variables.h"

namespace accelerate::detail {

namespace {

std::optional<long long> number_in(
    const Environment& environment,
    std::string_view name) {
  const auto text = environment.get(name);
  return text ? parse_int(*text) : std::nullopt;
}

std::string from(std::string_view variable) {
  return format("environment variable {}", variable);
}

// One port per job and step, since steps of a job may run at the same time.
long long slurm_port(const Environment& environment) {
  const long long job = number_in(environment, "SLURM_JOB_ID").value_or(0);
  const long long step = number_in(environment, "SLURM_STEP_ID").value_or(0);
  return 15000 + (job * 16 + step % 16) % 15000;
}

bool add_slurm(const Environment& environment, Source& source) {
  const auto nodes = number_in(environment, "SLURM_STEP_NUM_NODES");
  const auto tasks = number_in(environment, "SLURM_STEP_NUM_TASKS");
  const auto node = number_in(environment, "SLURM_NODEID");
  const auto list = environment.get("SLURM_STEP_NODELIST");
  if (!nodes || !tasks || !node || !list || *nodes < 2 || *tasks != *nodes)
    return false;
  source.add(
      "num_machines", std::to_string(*nodes), from("SLURM_STEP_NUM_NODES"));
  source.add("machine_rank", std::to_string(*node), from("SLURM_NODEID"));
  source.add(
      "main_process_ip", first_slurm_host(*list), from("SLURM_STEP_NODELIST"));
  source.add(
      "main_process_port",
      std::to_string(slurm_port(environment)),
      from("SLURM_JOB_ID"));
  const auto devices = number_in(environment, "SLURM_GPUS_ON_NODE");
  source.add(
      "num_processes",
      std::to_string(*nodes * devices.value_or(1)),
      devices ? from("SLURM_GPUS_ON_NODE") : from("SLURM_STEP_NUM_NODES"));
  return true;
}

bool add_operator(const Environment& environment, Source& source) {
  const auto nodes = number_in(environment, "PET_NNODES");
  const auto address = environment.get("PET_MASTER_ADDR");
  if (!nodes || !address || *nodes < 2) return false;
  // Operators set the node's rank in one of these two variables.
  const std::string_view name =
      environment.has("PET_NODE_RANK") ? "PET_NODE_RANK" : "RANK";
  const auto node = number_in(environment, name);
  if (!node) return false;
  source.add("num_machines", std::to_string(*nodes), from("PET_NNODES"));
  source.add("machine_rank", std::to_string(*node), from(name));
  source.add("main_process_ip", *address, from("PET_MASTER_ADDR"));
  source.add(
      "main_process_port",
      environment.get("PET_MASTER_PORT").value_or("29500"),
      from("PET_MASTER_PORT"));
  // The value is not always a number: torchrun also accepts auto.
  const auto here = number_in(environment, "PET_NPROC_PER_NODE");
  source.add(
      "num_processes",
      std::to_string(*nodes * here.value_or(1)),
      here ? from("PET_NPROC_PER_NODE") : from("PET_NNODES"));
  return true;
}

bool add_open_mpi(const Environment& environment, Source& source) {
  const auto size = number_in(environment, "OMPI_COMM_WORLD_SIZE");
  const auto rank = number_in(environment, "OMPI_COMM_WORLD_RANK");
  const auto here = number_in(environment, "OMPI_COMM_WORLD_LOCAL_SIZE");
  if (!size || !rank || here != 1 || *size < 2) return false;
  source.add(
      "num_machines", std::to_string(*size), from("OMPI_COMM_WORLD_SIZE"));
  source.add(
      "machine_rank", std::to_string(*rank), from("OMPI_COMM_WORLD_RANK"));
  source.add(
      "num_processes", std::to_string(*size), from("OMPI_COMM_WORLD_SIZE"));
  return true;
}

}  // namespace

Source source_from_scheduler(const Environment& environment) {
  Source source{Origin::environment, {}};
  if (!add_slurm(environment, source) && !add_operator(environment, source))
    add_open_mpi(environment, source);
  return source;
}

}  // namespace accelerate::detail
