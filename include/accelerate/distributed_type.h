#pragma once

#include <optional>
#include <string>
#include <string_view>

#include <c10/core/Device.h>

#include <accelerate/deepspeed.h>
#include <accelerate/export.h>
#include <accelerate/precision.h>

namespace accelerate {

/// How a program runs on its processes, in Accelerate's terms.
enum class DistributedType {
  no,  ///< one process
  /// Several processes on CPUs.
  multi_cpu,
  /// On CUDA devices, and on accelerators of kinds that have no name below.
  multi_gpu,
  /// Models are sharded, by FSDP's settings or a degree of `shard`; unlike in
  /// Accelerate, also on CPUs.
  fsdp,
  /// DeepSpeed's settings are in force.
  deepspeed,
  /// Megatron-LM's settings are in force.
  megatron_lm,
  // Several processes on accelerators of other vendors.
  /// Intel GPUs.
  multi_xpu,
  /// Intel Gaudi.
  multi_hpu,
  /// Ascend NPUs.
  multi_npu,
  /// Cambricon MLUs.
  multi_mlu,
  /// Moore Threads GPUs.
  multi_musa,
  /// Tecorigin SDAA devices.
  multi_sdaa,
  /// AWS Trainium and Inferentia.
  multi_neuron,
};

/// The type as Accelerate spells it: "NO", "MULTI_CPU", "FSDP" ...
ACCELERATE_API std::string_view name_of(DistributedType type);

/// Facts about an Accelerator, which do not change (Accelerate's
/// `accelerator.state`).
struct AcceleratorState {
  /// How the ranks work together.
  DistributedType distributed_type = DistributedType::no;
  /// The transport's name, such as "gloo"; empty with one process.
  std::string backend = {};
  /// Number of ranks of the world.
  int num_processes = 1;
  /// This process's rank in the world, from 0.
  int process_index = 0;
  /// This process's number on its node, from 0.
  int local_process_index = 0;
  /// The device of this rank.
  c10::Device device = c10::Device(c10::DeviceType::CPU);
  /// The precision of forward passes, as resolved.
  Precision mixed_precision = Precision::no;
  /// The DeepSpeed configuration in force, as JSON; empty without one.
  std::string deepspeed_config = {};
  /// The DeepSpeed options in force, with their values; empty if DeepSpeed's
  /// settings are not in use.
  std::optional<DeepSpeedOptions> deepspeed_plugin = {};
  /// True if FSDP's settings are in use, with fsdp_version 2.
  bool is_fsdp2 = false;
  /// True on the ranks that must write their model, or their shards of it, in a
  /// program that does its own saving: the first rank of each node if every
  /// rank has the full model, the ranks of the first replica if it is divided.
  /// The accelerator's own save functions decide for themselves, and are called
  /// on all ranks.
  bool should_save_model = true;

  /// True if there is more than one rank.
  [[nodiscard]] bool use_distributed() const { return num_processes > 1; }
  /// Follows Accelerate: false on CPUs, and with FSDP, DeepSpeed or
  /// Megatron-LM.
  [[nodiscard]] bool multi_device() const {
    return distributed_type == DistributedType::multi_gpu ||
        distributed_type >= DistributedType::multi_xpu;
  }
  /// The lines that Python prints for `accelerator.state`.
  [[nodiscard]] ACCELERATE_API std::string text() const;
};

}  // namespace accelerate
