#pragma once

#include <string>
#include <string_view>

#include <c10/core/Device.h>

#include <accelerate/export.h>
#include <accelerate/precision.h>

namespace accelerate {

/// How a program runs on its processes, in Accelerate's terms.
enum class DistributedType {
  no,  ///< one process
  multi_cpu,
  multi_gpu,  ///< on accelerators of any kind
  /// Models are sharded, by FSDP's settings or a degree of `shard`; unlike in
  /// Accelerate, also on CPUs.
  fsdp,
  deepspeed,
  megatron_lm,
};

/// "NO", "MULTI_CPU", "MULTI_GPU", "FSDP", "DEEPSPEED" or "MEGATRON_LM".
ACCELERATE_API std::string_view name_of(DistributedType type);

/// Facts about the processes of an Accelerator, which do not change
/// (Accelerate's `accelerator.state`).
struct AcceleratorState {
  DistributedType distributed_type = DistributedType::no;
  /// The transport's name, such as "gloo"; empty with one process.
  std::string backend = {};
  int num_processes = 1;
  int process_index = 0;
  int local_process_index = 0;
  c10::Device device = c10::Device(c10::DeviceType::CPU);
  Precision mixed_precision = Precision::no;
  /// The DeepSpeed configuration in force, as JSON; empty without one.
  std::string deepspeed_config = {};

  [[nodiscard]] bool use_distributed() const { return num_processes > 1; }
  /// The lines that Python prints for `accelerator.state`.
  [[nodiscard]] ACCELERATE_API std::string text() const;
};

}  // namespace accelerate
