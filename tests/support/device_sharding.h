#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <c10/core/AutogradState.h>
#include <torch/torch.h>

#include <accelerate/accelerate.h>

/// Shared by tests of several ranks on accelerators: a net, its training, and
/// the ways to divide it.
namespace accelerate::testing {

struct DeviceNetImpl : torch::nn::Module {
  DeviceNetImpl() {
    for (int i = 0; i < 4; ++i) layers->push_back(torch::nn::Linear(96, 96));
    register_module("layers", layers);
    factor = register_parameter("factor", torch::ones({}));
    mean = register_buffer("mean", torch::ones({3}));
    const torch::NoGradGuard no_grad;
    double number = 0;
    for (torch::Tensor& parameter : parameters()) {
      parameter.copy_(
          (torch::sin(torch::arange(parameter.numel()) + 37 * number++) * 0.1)
              .view(parameter.sizes()));
    }
  }
  torch::Tensor forward(const torch::Tensor& x) {
    torch::Tensor h = x;
    for (const auto& layer : *layers)
      h = torch::tanh(layer->as<torch::nn::Linear>()->forward(h));
    return h * factor + mean.sum();
  }
  torch::nn::ModuleList layers;
  torch::Tensor factor, mean;
};
TORCH_MODULE(DeviceNet);

/// Trains a DeviceNet for three steps on this rank of `world`; returns its full
/// weights in host memory. `look` is called after the last step.
inline std::vector<torch::Tensor> train_device_net(
    const WorldOptions& world,
    const ParallelOptions& parallel,
    const std::function<void(const Accelerator&, torch::optim::Optimizer&)>&
        look = nullptr) {
  // Ranks are threads, and the engine has one thread per device.
  c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
  const Accelerator accelerator({.parallel = parallel, .world = world});
  DeviceNet net;
  torch::optim::Adam inner(
      net->parameters(), torch::optim::AdamOptions(0.01).eps(1e-4));
  auto [model, optimizer] = accelerator.prepare(net, inner);
  for (int step = 0; step < 3; ++step) {
    const torch::Tensor rows =
        torch::sin(torch::arange(12 * 96) + step).view({12, 96});
    const int size = 12 / accelerator.num_processes();
    optimizer.zero_grad();
    const torch::Tensor mine =
        rows.narrow(0, accelerator.process_index() * size, size);
    accelerator.backward(model(mine.to(accelerator.device())).pow(2).mean());
    accelerator.clip_grad_norm_(model.parameters(), 1.0);
    optimizer.step();
  }
  if (look) look(accelerator, inner);
  std::vector<torch::Tensor> weights;
  for (const auto& [name, tensor] :
       accelerator.get_state_dict(model, {.rank0_only = false}))
    weights.push_back(tensor.detach().cpu().clone());
  return weights;
}

/// Ways to train on several devices, by name; the names end with "offloaded" if
/// shards are kept in host memory.
inline std::vector<std::pair<std::string, ParallelOptions>>
ways_to_train_on_devices() {
  const auto fsdp = [](FullyShardedDataParallelOptions options) {
    return ParallelOptions{.fully_sharded = std::move(options)};
  };
  return {
      {"replicated", {}},
      {"replicated, gradients as views",
       {.replicate_options = {.gradient_as_bucket_view = true}}},
      {"full shard", fsdp({})},
      {"full shard, offloaded", fsdp({.cpu_offload = true})},
      {"full shard in files, offloaded",
       fsdp(
           {.cpu_offload = true,
            .offload_directory =
                std::filesystem::temp_directory_path().string(),
            .offload_directory_in_memory = true})},
      {"until backward",
       fsdp({.sharding_strategy = ShardingStrategy::shard_grad_op})},
      {"ZeRO-1",
       {.deepspeed =
            DeepSpeedOptions{.gradient_clipping = 0, .zero_stage = 1}}},
      {"ZeRO-2, offloaded",
       {.deepspeed =
            DeepSpeedOptions{
                .gradient_clipping = 0,
                .zero_stage = 2,
                .offload_optimizer_device = "cpu"}}},
      {"ZeRO-3, offloaded",
       {.deepspeed =
            DeepSpeedOptions{
                .gradient_clipping = 0,
                .zero_stage = 3,
                .offload_param_device = "cpu"}}},
      {"Megatron-LM, offloaded",
       {.megatron_lm =
            MegatronLMOptions{
                .gradient_clipping = 0,
                .use_distributed_optimizer = true,
                .optimizer_cpu_offload = true}}},
  };
}

}  // namespace accelerate::testing
