// Batches, collectives and checkpoints on a CUDA device.
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <torch/torch.h>

#include <accelerate/accelerate.h>

#include "support/gpu_device.h"
#include "support/run_on_ranks.h"
#include "support/temporary_directory.h"

namespace accelerate {
namespace data_gpu_test {

namespace nn = torch::nn;
using torch::Tensor;

using DataOnGpu = testing::OnGpu;

TEST_F(DataOnGpu, BatchesArriveWholeHoweverTheyAreSent) {
  const Accelerator accelerator(
      {.world = {.rank = 0, .size = 1, .device = device_}});
  const Tensor rows = torch::arange(64 * 5000).view({64, 5000});
  for (const int workers : {0, 3}) {
    for (const bool pins : {false, true}) {
      for (const bool non_blocking : {false, true}) {
        DataLoaderOptions options;
        options.batch_size = 7;
        options.num_workers = workers;
        options.pin_memory = pins;
        options.non_blocking = non_blocking;
        auto loader = accelerator.prepare(
            DataLoader(TensorDataset(rows, rows * 2), options));
        for (int epoch = 0; epoch < 2; ++epoch) {
          std::vector<Tensor> all;
          for (auto& [x, y] : loader) {
            EXPECT_EQ(x.device(), device_);
            EXPECT_TRUE((x * 2).equal(y));
            all.push_back(x);
          }
          EXPECT_TRUE(torch::cat(all).cpu().equal(rows));
        }
      }
    }
  }
}

// Ranks are threads here; their tensors are sent through host memory.
TEST_F(DataOnGpu, CollectivesTakeTensorsOfTheDevice) {
  testing::run_on_ranks(3, [&](const WorldOptions& options) {
    WorldOptions world = options;
    world.device = device_;
    const Accelerator accelerator({.world = world});
    const int rank = accelerator.process_index();
    for (const auto dtype :
         {torch::kFloat, torch::kHalf, torch::kBFloat16, torch::kLong}) {
      const auto like = torch::dtype(dtype).device(device_);
      const Tensor mine = torch::full({2, 3}, rank + 1, like);
      const Tensor all = accelerator.gather(mine);
      EXPECT_EQ(all.device(), device_);
      EXPECT_EQ(all.dtype(), mine.dtype());
      EXPECT_TRUE(all.equal(torch::cat(
          {torch::full({2, 3}, 1, like),
           torch::full({2, 3}, 2, like),
           torch::full({2, 3}, 3, like)})));
      EXPECT_TRUE(accelerator.reduce(mine, ReduceOp::sum)
                      .equal(torch::full({2, 3}, 6, like)));
      const Tensor padded = accelerator.pad_across_processes(
          torch::full({rank + 1, 2}, rank, like));
      EXPECT_EQ(padded.size(0), 3);
      EXPECT_EQ(padded.device(), device_);
      Tensor sent = torch::full({4}, rank, like);
      sent = broadcast(sent, accelerator.world().group(), 2);
      EXPECT_TRUE(sent.equal(torch::full({4}, 2, like)));
    }
    accelerator.wait_for_everyone();
  });
}

struct Trained {
  std::vector<double> losses;
  std::vector<Tensor> weights;
};

// Trains with dropout from step `first` on. If `first` is 0, it saves before
// step 3; otherwise it continues from the saved state.
Trained train(
    at::Device device,
    const std::string& directory,
    int first,
    int last,
    bool asynchronous) {
  Accelerator accelerator(
      {.mixed_precision = Precision::fp16,
       .grad_scaler = {.init_scale = 256},
       .world = {.rank = 0, .size = 1, .device = device}});
  set_seed(5);
  nn::Sequential net(
      nn::Linear(16, 64), nn::ReLU(), nn::Dropout(0.3), nn::Linear(64, 16));
  torch::optim::AdamW adamw(net->parameters(), 1e-2);
  auto [model, optimizer] = accelerator.prepare(net, adamw);
  if (first > 0) accelerator.load_state(directory);
  Trained trained;
  std::optional<SaveTicket> ticket;
  for (int step = first; step < last; ++step) {
    if (step == 3 && first == 0)
      ticket =
          accelerator.save_state(directory, {.asynchronous = asynchronous});
    optimizer.zero_grad();
    const Tensor x =
        torch::sin(torch::arange(8 * 16) + step).view({8, 16}).to(device);
    const Tensor loss = (model(x) - x).square().mean();
    accelerator.backward(loss);
    optimizer.step();
    trained.losses.push_back(loss.item<double>());
  }
  if (ticket) ticket->wait();
  for (const Tensor& parameter : net->parameters())
    trained.weights.push_back(parameter.detach().cpu());
  return trained;
}

TEST_F(DataOnGpu, CheckpointsContinueWithTheSameBits) {
  for (const bool asynchronous : {false, true}) {
    const testing::TemporaryDirectory directory;
    const std::string path = directory.path() / "state";
    const Trained whole = train(device_, path, 0, 6, asynchronous);
    const Trained rest = train(device_, path, 3, 6, false);
    EXPECT_EQ(
        rest.losses,
        std::vector<double>(whole.losses.begin() + 3, whole.losses.end()));
    for (std::size_t i = 0; i < rest.weights.size(); ++i)
      EXPECT_TRUE(rest.weights[i].equal(whole.weights[i])) << i;
  }
}

TEST_F(DataOnGpu, CheckpointsContinueOnTheCpuToo) {
  const testing::TemporaryDirectory directory;
  const std::string path = directory.path() / "state";
  train(device_, path, 0, 4, false);
  const Trained rest = train(at::kCPU, path, 3, 6, false);
  for (const double loss : rest.losses) EXPECT_TRUE(std::isfinite(loss));
}

}  // namespace data_gpu_test
}  // namespace accelerate
