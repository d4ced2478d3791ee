// What NCCL costs one rank on a CUDA device: the host's time for a collective,
// beside that for an operator of LibTorch, and steps of one replica and one
// shard, beside the prepared step. Without a device, nothing is measured.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include <ATen/DeviceAccelerator.h>
#include <torch/torch.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <accelerate/accelerate.h>

#include "comm/transport/nccl/nccl_library.h"
#include "comm/transport/nccl/nccl_transport.h"
#include "interleave.h"
#include "support/load_gpu.h"

namespace {

namespace nn = torch::nn;
// LibTorch has a namespace of the same name.
namespace parts = accelerate::detail;
using namespace accelerate;
using accelerate::benchmarks::interleave;
using torch::Tensor;

const at::Device kDevice{at::kCUDA, 0};

void report(const std::string& metric, const benchmarks::Interleaved& times) {
  benchmarks::report_interleaved("transport", metric, times);
}

std::shared_ptr<parts::Connection> connect_alone() {
  const char* const path = std::getenv("ACCELERATE_NCCL_LIBRARY");
  const auto library = parts::NcclLibrary::open(
      path == nullptr ? std::nullopt : std::optional<std::string>(path));
  return parts::make_nccl_transport(library, kDevice)
      ->connect(
          {.store = c10::make_intrusive<c10d::HashStore>(),
           .name = "alone",
           .world_ranks = {0},
           .timeout = std::chrono::seconds(60)});
}

// What queues the operation, which the device may still compute.
void measure_collectives() {
  constexpr int kBlocks = 40, kCalls = 200;
  const auto connection = connect_alone();
  const Tensor value = torch::ones({1024}, torch::device(kDevice));
  const Tensor all = torch::ones({1024}, torch::device(kDevice));
  const auto queued = [&](auto call) {
    return interleave(kBlocks, kCalls, call, [&] { value.add_(1); });
  };
  report("nccl_all_reduce_host_of_one_rank", queued([&] {
           connection->all_reduce(value, ReduceOp::sum)->wait();
         }));
  report("nccl_all_gather_host_of_one_rank", queued([&] {
           connection->all_gather(all, value)->wait();
         }));
  report("nccl_reduce_scatter_host_of_one_rank", queued([&] {
           connection->reduce_scatter(all, value, ReduceOp::sum)->wait();
         }));
  at::accelerator::synchronizeDevice(0);
}

// A net whose kernels take longer than launching them.
struct Training {
  explicit Training(ParallelOptions parallel)
      : accelerator(
            {.parallel = std::move(parallel),
             .world = {.rank = 0, .size = 1, .device = kDevice}}),
        net(make_net()),
        sgd(net->parameters(), 1e-3),
        prepared(accelerator.prepare(net, sgd)) {}

  static nn::Sequential make_net() {
    torch::manual_seed(1);
    nn::Sequential net;
    for (int i = 0; i < 8; ++i) {
      net->push_back(nn::Linear(2048, 2048));
      net->push_back(nn::GELU());
    }
    net->to(kDevice);
    return net;
  }

  void step(const Tensor& x) {
    auto& [model, optimizer] = prepared;
    optimizer.zero_grad();
    accelerator.backward(model(x).square().mean());
    optimizer.step();
    at::accelerator::synchronizeDevice(0);
  }

  Accelerator accelerator;
  nn::Sequential net;
  torch::optim::SGD sgd;
  std::tuple<Model<nn::SequentialImpl>, Optimizer> prepared;
};

void measure_steps() {
  const Tensor x = torch::randn({4096, 2048}, torch::device(kDevice));
  Training prepared({}), replicated({.replicate = 1}),
      sharded({.fully_sharded = FullyShardedDataParallelOptions{}});
  const auto beside_prepared = [&](Training& training) {
    return interleave(
        20, 5, [&] { training.step(x); }, [&] { prepared.step(x); });
  };
  report(
      "replicated_step_of_one_rank_over_prepared", beside_prepared(replicated));
  report("sharded_step_of_one_rank_over_prepared", beside_prepared(sharded));
}

}  // namespace

int main() {
  // The other figures of this case need no device.
  if (const std::string missing = testing::missing_gpu(); !missing.empty()) {
    std::fprintf(
        stderr, "transport: not measured on a device: %s\n", missing.c_str());
    return 0;
  }
  measure_collectives();
  measure_steps();
  return 0;
}
