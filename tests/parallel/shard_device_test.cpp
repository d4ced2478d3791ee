// Sharding of models on an accelerator, with messages in host memory.
#include <cstdlib>

#include <c10/core/AutogradState.h>

#include <accelerate/accelerate.h>

#include "support/pretend_device.h"
#include "support/run_on_ranks.h"
#include "support/temporary_directory.h"

namespace accelerate {
namespace shard_device_test {

using testing::pretend_device;
using testing::run_on_ranks;
using torch::Tensor;
namespace nn = torch::nn;

struct NetImpl : nn::Module {
  NetImpl() {
    for (int i = 0; i < 4; ++i) layers->push_back(nn::Linear(96, 96));
    register_module("layers", layers);
    factor = register_parameter("factor", torch::ones({}));
    mean = register_buffer("mean", torch::ones({3}));
    const torch::NoGradGuard no_grad;
    double number = 0;
    for (Tensor& parameter : parameters()) {
      parameter.copy_(
          (torch::sin(torch::arange(parameter.numel()) + 37 * number++) * 0.1)
              .view(parameter.sizes()));
    }
  }
  Tensor forward(const Tensor& x) {
    Tensor h = x;
    for (const auto& layer : *layers)
      h = torch::tanh(layer->as<nn::Linear>()->forward(h));
    return h * factor + mean.sum();
  }
  nn::ModuleList layers;
  Tensor factor, mean;
};
TORCH_MODULE(Net);

std::vector<Tensor> train(
    const WorldOptions& world,
    const ParallelOptions& parallel,
    const std::function<void(const Accelerator&, torch::optim::Optimizer&)>&
        look = nullptr) {
  c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
  const Accelerator accelerator({.parallel = parallel, .world = world});
  Net net;
  torch::optim::Adam inner(
      net->parameters(), torch::optim::AdamOptions(0.01).eps(1e-4));
  auto [model, optimizer] = accelerator.prepare(net, inner);
  for (int step = 0; step < 3; ++step) {
    const Tensor rows =
        torch::sin(torch::arange(12 * 96) + step).view({12, 96});
    const int size = 12 / accelerator.num_processes();
    optimizer.zero_grad();
    const Tensor mine =
        rows.narrow(0, accelerator.process_index() * size, size);
    accelerator.backward(model(mine.to(accelerator.device())).pow(2).mean());
    accelerator.clip_grad_norm_(model.parameters(), 1.0);
    optimizer.step();
  }
  if (look) look(accelerator, inner);
  std::vector<Tensor> weights;
  for (const auto& [name, tensor] :
       accelerator.get_state_dict(model, {.rank0_only = false}))
    weights.push_back(tensor.detach().cpu().clone());
  return weights;
}

TEST(ShardOnDevice, TrainsAsOnTheCpu) {
  pretend_device();
  std::vector<Tensor> expected;
  run_on_ranks(2, [&](const WorldOptions& options) {
    WorldOptions world = options;
    world.device = at::kCPU;
    const auto weights =
        train(world, {.fully_sharded = FullyShardedDataParallelOptions()});
    if (world.rank == 0) expected = weights;
  });
  const auto fsdp = [](FullyShardedDataParallelOptions options) {
    return ParallelOptions{.fully_sharded = std::move(options)};
  };
  const std::vector<std::pair<std::string, ParallelOptions>> variants{
      {"full shard", fsdp({})},
      {"full shard, offloaded", fsdp({.cpu_offload = true})},
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
  for (const auto& [name, parallel] : variants) {
    SCOPED_TRACE(name);
    run_on_ranks(2, [&](const WorldOptions& options) {
      WorldOptions world = options;
      world.device = pretend_device(*options.rank);
      const bool is_offloaded = name.ends_with("offloaded");
      const auto found = train(
          world,
          parallel,
          [&](const Accelerator& accelerator, torch::optim::Optimizer& inner) {
            EXPECT_EQ(accelerator.device(), *world.device);
            for (const Tensor& shard : inner.param_groups()[0].params()) {
              if (shard.dim() > 0) {
                EXPECT_EQ(shard.is_cpu(), is_offloaded) << shard.sizes();
              }
            }
          });
      ASSERT_EQ(found.size(), expected.size());
      for (std::size_t i = 0; i < found.size(); ++i) {
        EXPECT_TRUE(torch::allclose(found[i], expected[i], 1e-5, 1e-6))
            << i << " " << (found[i] - expected[i]).abs().max().item<double>();
      }
    });
  }
}

TEST(ShardOnDevice, SavesAndLoadsWeights) {
  pretend_device();
  const testing::TemporaryDirectory directory;
  const Net before;
  for (const bool from_rank_0 : {false, true}) {
    run_on_ranks(2, [&](const WorldOptions& options) {
      WorldOptions world = options;
      world.device = pretend_device(*options.rank);
      const Accelerator accelerator(
          {.parallel = {.fully_sharded = FullyShardedDataParallelOptions()},
           .world = world});
      Net net;
      const auto model = accelerator.prepare(net);
      if (!from_rank_0) accelerator.save_model(model, directory.path());
      Net empty = init_empty_weights([] { return Net(); });
      const auto other = accelerator.prepare(empty);
      EXPECT_EQ(empty->layers[0]->parameters()[0].device(), *world.device);
      accelerator.load_model(
          other, directory.path(), {.broadcast_from_rank0 = from_rank_0});
      const WeightList found = accelerator.get_state_dict(other);
      if (!accelerator.is_main_process()) return;
      const WeightList expected = get_state_dict(*before);
      ASSERT_EQ(found.size(), expected.size());
      for (std::size_t i = 0; i < found.size(); ++i) {
        EXPECT_TRUE(torch::equal(found[i].second, expected[i].second))
            << found[i].first;
      }
    });
  }
}

TEST(Device, IsTheAcceleratorIfCodeSaysSoWhateverTheLauncherWasTold) {
  const at::Device device = pretend_device();
  setenv("ACCELERATE_USE_CPU", "true", 1);
  const WorldOptions one{.rank = 0, .size = 1};
  EXPECT_EQ(Accelerator({.world = one}).device(), at::kCPU);
  const Accelerator accelerator({.cpu = false, .world = one});
  EXPECT_EQ(accelerator.device(), device);
  EXPECT_NE(
      accelerator.explain_settings().find("use_cpu = false  (code)\n"),
      std::string::npos);
  unsetenv("ACCELERATE_USE_CPU");
  EXPECT_EQ(Accelerator({.world = one}).device(), device);
  EXPECT_EQ(Accelerator({.cpu = true, .world = one}).device(), at::kCPU);
}

TEST(Device, IsThatOfTheSeatInAnElasticGroup) {
  // The first of two ranks has left, and the other is numbered anew.
  const auto scope = patch_environment(
      {{"RANK", "0"},
       {"WORLD_SIZE", "1"},
       {"LOCAL_RANK", "0"},
       {"LOCAL_WORLD_SIZE", "1"},
       {"MASTER_ADDR", "127.0.0.1"},
       {"MASTER_PORT", "29500"},
       {"ACCELERATE_CPP_GENERATION", "2"},
       {"ACCELERATE_CPP_BOARD_PAGE", "1"}});
  EXPECT_EQ(World().device(), at::Device(pretend_device().type(), 1));
  EXPECT_EQ(
      World({.local_rank = 0}).device(),
      at::Device(pretend_device().type(), 0));
}

}  // namespace shard_device_test
}  // namespace accelerate
