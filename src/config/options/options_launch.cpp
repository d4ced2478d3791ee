#include "config/options/option_rows.h"

#include <array>

namespace accelerate::detail {

namespace {

using enum OptionKind;
using enum OptionUse;

// Options that the launcher itself acts on.
// clang-format off
constexpr std::array<OptionSpec, 41> kLaunchRows{{
    {"num_processes", "", "--num_processes", "", integer, "", "1..", launches, "Training",
     "processes on all machines together; each is one rank. 2:8 starts 8, and a program with run_elastic() continues with as few as 2. Unset: one for each accelerator here, or one"},
    {"min_processes", "", "", "", integer, "", "1..", launches, "Training",
     "the fewest ranks with which an elastic program goes on; the flag for it is --num_processes MIN:MAX. Unset: num_processes"},
    {"use_cpu", "", "--cpu", "ACCELERATE_USE_CPU", boolean, "false", "", acts, "Training",
     "stay on the CPU even where there is an accelerator"},
    {"multi_gpu", "", "--multi_gpu", "", boolean, "false", "", launches, "Training",
     "several processes on accelerators; that is what --num_processes alone means here as well"},
    {"gpu_ids", "", "--gpu_ids", "", text, "", "", launches, "Training",
     "accelerators that the ranks may see, such as 0,2, or all"},
    {"device", "", "", "ACCELERATE_TORCH_DEVICE", text, "", "", acts, "Training",
     "the device of every rank, such as cpu or cuda:1, instead of the one chosen by local rank"},
    {"mixed_precision", "", "--mixed_precision", "ACCELERATE_MIXED_PRECISION", choice, "no", "no|fp16|bf16|fp8", acts, "Training",
     "precision of the forward pass"},
    {"gradient_accumulation_steps", "", "--gradient_accumulation_steps", "ACCELERATE_GRADIENT_ACCUMULATION_STEPS", integer, "1", "1..", acts, "Training",
     "micro-batches whose gradients are added before the optimizer steps"},
    {"timeout_seconds", "", "--timeout_seconds", "ACCELERATE_TIMEOUT_SECONDS", number, "", "0..", acts, "Training",
     "how long a collective waits for a silent peer"},
    {"hang_seconds", "", "--hang_seconds", "ACCELERATE_CPP_HANG_SECONDS", number, "10", "0..", acts, "Training",
     "how long ranks wait for others before a report names those that hold them up; 0: never"},
    {"on_hang", "", "--on_hang", "ACCELERATE_CPP_ON_HANG", choice, "stacks", "warn|stacks|kill", acts, "Training",
     "what follows such a report: nothing more, the stacks of the ranks that hold up the others, or their end as well"},
    {"transport", "", "--transport", "ACCELERATE_TRANSPORT", choice, "automatic", "automatic|shared_memory|gloo|nccl", acts, "Training",
     "how ranks move data: NCCL between GPUs; between hosts' memories shared memory where they run on one machine, else Gloo; or always one of them"},
    {"debug", "", "--debug", "ACCELERATE_DEBUG_MODE", boolean, "false", "", acts, "Training",
     "check before each collective that all ranks call the same one with the same shapes"},
    {"log_level", "", "--log_level", "ACCELERATE_LOG_LEVEL", choice, "warning", "debug|info|warning|error|critical|off", acts, "Training",
     "which messages of the library, and of loggers without a level of their own, are shown"},
    {"log_levels", "", "--log_levels", "ACCELERATE_CPP_LOG", text, "", "", acts, "Training",
     "levels of areas of the library and of loggers by name, such as comm=debug,train=info"},
    {"log_format", "", "--log_format", "ACCELERATE_CPP_LOG_FORMAT", choice, "text", "text|json", acts, "Training",
     "how messages are written: as plain lines, or as one JSON object per line"},
    {"run_name", "", "--run_name", "ACCELERATE_RUN_NAME", text, "", "", acts, "Training",
     "name of the run, whose journal is in a directory of this name. Unset: project, date and time"},
    {"quiet", "", "--quiet", "", boolean, "false", "", launches, "Training",
     "print nothing of our own when a rank fails"},
    {"num_cpu_threads_per_process", "", "--num_cpu_threads_per_process", "OMP_NUM_THREADS", integer, "0", "0..", launches, "Cores",
     "threads that one rank computes with; 0 shares the cores out among the ranks"},
    {"enable_cpu_affinity", "", "--enable_cpu_affinity", "ACCELERATE_CPU_AFFINITY", boolean, "false", "", launches, "Cores",
     "the same as --cpu_affinity auto"},
    {"cpu_affinity", "", "--cpu_affinity", "", text, "none", "", launches, "Cores",
     "bind ranks to processors: none, auto (shared out among the ranks), or a list for each, such as 0-3;4-7"},
    {"num_machines", "", "--num_machines", "", integer, "1", "1..", launches, "Machines",
     "machines that take part"},
    {"machine_rank", "", "--machine_rank", "", integer, "0", "0..", launches, "Machines",
     "which of the machines this one is, from 0"},
    {"main_process_ip", "", "--main_process_ip", "", text, "", "", launches, "Machines",
     "address of the machine with rank 0"},
    {"main_process_port", "", "--main_process_port", "", integer, "", "0..65535", launches, "Machines",
     "port where rank 0 keeps the key-value store. Unset or 0: a free one, which several machines cannot take"},
    {"same_network", "", "--same_network", "", boolean, "false", "", unused, "Machines",
     "all machines are in one network; here the address of rank 0 is always given, which is what this asks for", std::nullopt, "true"},
    {"hostfile", "", "--hostfile", "", text, "", "", launches, "Machines",
     "hosts to start on, one per line, such as node1 slots=4; rank 0 is on the first"},
    {"remote_shell", "", "--remote_shell", "", choice, "ssh", "ssh|pdsh", launches, "Machines",
     "how hosts of --hostfile are reached"},
    {"check", "", "--check", "", boolean, "false", "", launches, "Machines",
     "before the start, every machine connects to every other and measures; a pair that cannot is named"},
    {"rdzv_backend", "", "--rdzv_backend", "", text, "static", "", unused, "Machines",
     "torchrun's rendezvous; here the address of rank 0 is always given"},
    {"rdzv_conf", "", "--rdzv_conf", "", text, "", "", unused, "Machines",
     "further settings of torchrun's rendezvous, such as timeout=900"},
    {"mpirun_hostfile", "mpirun_config", "--mpirun_hostfile", "", text, "", "", launches, "Machines",
     "start the ranks by mpirun, on these hosts"},
    {"log_dir", "", "--log_dir", "", text, "", "", launches, "Output and restarts",
     "directory for files with the output of each rank: ATTEMPT/RANK/stdout.log and stderr.log"},
    {"tee", "", "--tee", "", text, "0", "", launches, "Output and restarts",
     "what is shown beside --log_dir: 0 nothing, 1 stdout, 2 stderr, 3 both; or by local rank, such as 0:3,1:2. Unset: both"},
    {"role", "", "--role", "", text, "default", "", launches, "Output and restarts",
     "name of this kind of worker, shown before the rank in each line"},
    {"max_restarts", "", "--max_restarts", "", integer, "0", "0..", launches, "Output and restarts",
     "how often a failed group is started again, or, in a program with run_elastic(), a failed rank alone; it resumes from its newest complete checkpoint"},
    {"redundancy", "", "--redundancy", "ACCELERATE_CPP_REDUNDANCY", choice, "none", "none|neighbour", acts, "Output and restarts",
     "where run_elastic() keeps a state to go back to when a rank ends, besides checkpoints: nowhere, or in memory, of another machine too if there are several"},
    {"redundancy_steps", "", "--redundancy_steps", "ACCELERATE_CPP_REDUNDANCY_STEPS", integer, "10", "1..", acts, "Output and restarts",
     "how many steps run_elastic() makes from one such state to the next"},
    {"elastic_batch", "", "--elastic_batch", "ACCELERATE_CPP_ELASTIC_BATCH", choice, "global", "global|per_rank", acts, "Output and restarts",
     "what run_elastic() keeps when the number of ranks changes: the samples of a step on all ranks together, or on each"},
    {"grace_seconds", "", "--grace_seconds", "", number, "30", "0..", launches, "Output and restarts",
     "how long ranks may continue after the launcher was told to end (SIGTERM), to save and leave; then they are killed"},
    {"monitor_interval", "", "--monitor_interval", "", number, "0.1", "0..", unused, "Output and restarts",
     "seconds between looks at the ranks under torchrun; here the end of a rank is heard at once"},
}};
// clang-format on

}  // namespace

std::span<const OptionSpec> launch_option_rows() { return kLaunchRows; }

}  // namespace accelerate::detail
