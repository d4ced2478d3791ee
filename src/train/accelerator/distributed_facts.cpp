#include <accelerate/accelerator.h>

#include <array>
#include <string>
#include <string_view>
#include <utility>

#include <accelerate/distributed_type.h>

#include "base/text/text.h"
#include "comm/group/group_impl.h"
#include "train/session/session.h"

namespace accelerate {

std::string_view name_of(DistributedType type) {
  constexpr std::array<std::string_view, 13> names{
      "NO",
      "MULTI_CPU",
      "MULTI_GPU",
      "FSDP",
      "DEEPSPEED",
      "MEGATRON_LM",
      "MULTI_XPU",
      "MULTI_HPU",
      "MULTI_NPU",
      "MULTI_MLU",
      "MULTI_MUSA",
      "MULTI_SDAA",
      "MULTI_NEURON"};
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

namespace {

// Several ranks on devices of this kind, as Accelerate calls them.
DistributedType type_of_ranks_on(at::Device device) {
  using enum DistributedType;
  constexpr std::array<std::pair<std::string_view, DistributedType>, 8> types{
      {{"cpu", multi_cpu},
       {"xpu", multi_xpu},
       {"hpu", multi_hpu},
       {"npu", multi_npu},
       {"mlu", multi_mlu},
       {"musa", multi_musa},
       {"sdaa", multi_sdaa},
       {"neuron", multi_neuron}}};
  const std::string kind =
      c10::DeviceTypeName(device.type(), /*lower_case=*/true);
  for (const auto& [name, type] : types)
    if (name == kind) return type;
  return multi_gpu;
}

DistributedType type_of(const detail::Session& session) {
  if (session.world.size() == 1) return DistributedType::no;
  switch (session.layout.plan_request.training.engine) {
    case detail::Engine::deepspeed:
      return DistributedType::deepspeed;
    case detail::Engine::megatron_lm:
      return DistributedType::megatron_lm;
    case detail::Engine::fully_sharded:
      return DistributedType::fsdp;
    case detail::Engine::none:
      break;
  }
  if (session.layout.mesh.degree(Axis::shard) > 1) return DistributedType::fsdp;
  return type_of_ranks_on(session.world.device());
}

bool must_save_model(const Mesh& mesh) {
  const bool divides_model = mesh.degree(Axis::shard) > 1 ||
      mesh.degree(Axis::expert) > 1 || mesh.degree(Axis::tensor) > 1 ||
      mesh.degree(Axis::pipeline) > 1;
  if (!divides_model) return mesh.world().is_local_main_process();
  return mesh.experts().coordinate(Axis::replicate) == 0 &&
      mesh.coordinate(Axis::context) == 0;
}

}  // namespace

AcceleratorState Accelerator::state() const {
  const auto& connection = world().group().impl()->connection;
  const auto& training = session_->layout.plan_request.training;
  const DistributedType type = type_of(*session_);
  return {
      .distributed_type = type,
      .backend = connection ? connection->facts().name : std::string(),
      .num_processes = num_processes(),
      .process_index = process_index(),
      .local_process_index = world().local_rank(),
      .device = device(),
      .mixed_precision = session_->options.precision,
      .deepspeed_config = training.deepspeed_config,
      .deepspeed_plugin = training.deepspeed,
      .is_fsdp2 = type == DistributedType::fsdp && training.fsdp_version == 2,
      .should_save_model = must_save_model(mesh())};
}

}  // namespace accelerate
