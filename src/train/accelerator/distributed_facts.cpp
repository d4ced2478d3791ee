#include <accelerate/accelerator.h>

#include <array>
#include <utility>

#include <accelerate/distributed_type.h>

#include "base/text/text.h"
#include "comm/group/group_impl.h"
#include "train/session/session.h"

namespace accelerate {

std::string_view name_of(DistributedType type) {
  constexpr std::array<std::string_view, 6> names{
      "NO", "MULTI_CPU", "MULTI_GPU", "FSDP", "DEEPSPEED", "MEGATRON_LM"};
  return names[static_cast<std::size_t>(type)];
}

std::string AcceleratorState::text() const {
  std::string text = detail::format(
      "Distributed environment: DistributedType.{}{}\n"
      "Num processes: {}\nProcess index: {}\nLocal process index: {}\n"
      "Device: {}\n\nMixed precision type: {}\n",
      name_of(distributed_type),
      backend.empty() ? "" : detail::format("  Backend: {}", backend),
      num_processes,
      process_index,
      local_process_index,
      device.str(),
      name_of(mixed_precision));
  if (!deepspeed_config.empty())
    text += detail::format("ds_config: {}\n", deepspeed_config);
  return text;
}

DistributedType AcceleratorProcesses::distributed_type() const {
  if (!use_distributed()) return DistributedType::no;
  switch (session_->layout.plan_request.training.engine) {
    case detail::Engine::deepspeed:
      return DistributedType::deepspeed;
    case detail::Engine::megatron_lm:
      return DistributedType::megatron_lm;
    case detail::Engine::fully_sharded:
      return DistributedType::fsdp;
    case detail::Engine::none:
      break;
  }
  if (mesh().degree(Axis::shard) > 1) return DistributedType::fsdp;
  return device().is_cpu() ? DistributedType::multi_cpu
                           : DistributedType::multi_gpu;
}

bool AcceleratorProcesses::use_distributed() const {
  return num_processes() > 1;
}

bool AcceleratorProcesses::multi_device() const {
  return distributed_type() == DistributedType::multi_gpu;
}

bool AcceleratorProcesses::is_fsdp2() const {
  return distributed_type() == DistributedType::fsdp &&
      session_->layout.plan_request.training.fsdp_version == 2;
}

AcceleratorState AcceleratorProcesses::state() const {
  const auto& connection = world().group().impl()->connection;
  return {
      .distributed_type = distributed_type(),
      .backend = connection ? connection->facts().name : std::string(),
      .num_processes = num_processes(),
      .process_index = process_index(),
      .local_process_index = local_process_index(),
      .device = device(),
      .mixed_precision = mixed_precision(),
      .deepspeed_config =
          session_->layout.plan_request.training.deepspeed_config};
}

int AcceleratorProcesses::tensor_parallel_rank() const {
  return mesh().coordinate(Axis::tensor);
}
int AcceleratorProcesses::pipeline_parallel_rank() const {
  return mesh().coordinate(Axis::pipeline);
}
int AcceleratorProcesses::context_parallel_rank() const {
  return mesh().coordinate(Axis::context);
}
int AcceleratorProcesses::data_parallel_rank() const {
  return mesh().coordinate(Axis::replicate);
}
int AcceleratorProcesses::data_parallel_shard_rank() const {
  return mesh().coordinate(Axis::shard);
}

bool AcceleratorProcesses::should_save_model() const {
  const bool divides_model = mesh().degree(Axis::shard) > 1 ||
      mesh().degree(Axis::expert) > 1 || mesh().degree(Axis::tensor) > 1 ||
      mesh().degree(Axis::pipeline) > 1;
  if (!divides_model) return is_local_main_process();
  return mesh().experts().coordinate(Axis::replicate) == 0 &&
      context_parallel_rank() == 0;
}

const std::optional<DeepSpeedOptions>& AcceleratorProcesses::deepspeed_plugin()
    const {
  return session_->layout.plan_request.training.deepspeed;
}

}  // namespace accelerate
