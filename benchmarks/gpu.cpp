// A CUDA device: what handles add to a step, optimizers and clipping compared
// with LibTorch's, float8 steps compared with bf16, forwards of weights in host
// memory compared with their link, and forwards of weights on disk.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include <ATen/DeviceAccelerator.h>
#include <torch/torch.h>

#include <accelerate/accelerate.h>
#include <accelerate/big_model.h>
#include <accelerate/fp8.h>

#include "cold_files.h"
#include "interleave.h"
#include "support/float8_recipes.h"
#include "support/load_gpu.h"

namespace {

namespace nn = torch::nn;
using namespace accelerate;
using accelerate::benchmarks::interleave;
using torch::Tensor;

const at::Device kDevice{at::kCUDA, 0};

WorldOptions alone() { return {.rank = 0, .size = 1, .device = kDevice}; }

// Wraps `call` so that it returns once the device has finished its work.
template <class Call>
auto finished(Call call) {
  return [call = std::move(call)]() mutable {
    call();
    at::accelerator::synchronizeDevice(0);
  };
}

void report(const std::string& metric, const benchmarks::Interleaved& times) {
  benchmarks::report_interleaved("gpu", metric, times);
}

nn::Sequential make_net(std::int64_t width, int num_layers) {
  torch::manual_seed(1);
  nn::Sequential net;
  for (int i = 0; i < num_layers; ++i) {
    net->push_back(nn::Linear(width, width));
    net->push_back(nn::GELU());
  }
  net->to(kDevice);
  return net;
}

// A step whose kernels take less time than launching them.
void measure_steps() {
  const Tensor x = torch::randn({32, 64}, torch::device(kDevice));
  nn::Sequential by_hand = make_net(64, 3), net = make_net(64, 3);
  torch::optim::SGD plain(by_hand->parameters(), 1e-3);
  torch::optim::SGD inner(net->parameters(), 1e-3);
  const Accelerator accelerator({.world = alone()});
  auto [model, optimizer] = accelerator.prepare(net, inner);
  report(
      "step_over_by_hand",
      interleave(
          40,
          50,
          finished([&, &model = model, &optimizer = optimizer] {
            optimizer.zero_grad();
            accelerator.backward(model(x).square().mean());
            optimizer.step();
          }),
          finished([&] {
            plain.zero_grad();
            by_hand->forward(x).square().mean().backward();
            plain.step();
          })));
}

// The step of a 64-64-10 net as one graph, over the same step launched kernel by
// kernel.
void measure_captured_steps() {
  const auto make = [] {
    torch::manual_seed(1);
    nn::Sequential net(nn::Linear(64, 64), nn::ReLU(), nn::Linear(64, 10));
    net->to(kDevice);
    return net;
  };
  const Tensor x = torch::randn({32, 64}, torch::device(kDevice));
  nn::Sequential plain_net = make(), net = make();
  torch::optim::AdamW plain_adamw(plain_net->parameters(), 1e-3);
  torch::optim::AdamW adamw(net->parameters(), 1e-3);
  const Accelerator accelerator({.world = alone()});
  const Accelerator plain_accelerator({.world = alone()});
  auto [model, optimizer] = accelerator.prepare(net, adamw);
  auto [plain_model, plain_optimizer] =
      plain_accelerator.prepare(plain_net, plain_adamw);
  const auto take = [](const Accelerator& used,
                       const auto& used_model,
                       const Optimizer& used_optimizer,
                       const Tensor& input) {
    const Tensor loss = used_model(input).square().mean();
    used.backward(loss);
    static_cast<void>(used.clip_grad_norm_(used_model, 1.0));
    used_optimizer.step();
    used_optimizer.zero_grad();
    return loss;
  };
  const auto step = accelerator.capture(
      [&, &model = model, &optimizer = optimizer](const Tensor& input) {
        return take(accelerator, model, optimizer, input);
      });
  for (int i = 0; i < 8; ++i) step(x);
  if (!step.captured()) {
    std::fprintf(
        stderr, "gpu: steps are not captured: %s\n", step.reason().c_str());
    return;
  }
  report(
      "captured_step_over_plain",
      interleave(
          40,
          50,
          finished([&] { step(x); }),
          finished([&,
                    &plain_model = plain_model,
                    &plain_optimizer = plain_optimizer] {
            take(plain_accelerator, plain_model, plain_optimizer, x);
          })));
}

template <class Ours, class Theirs, class Options>
void measure_optimizer(const std::string& name, const Options& options) {
  nn::Sequential ours_net = make_net(512, 32), theirs_net = make_net(512, 32);
  for (const nn::Sequential& net : {ours_net, theirs_net}) {
    for (Tensor& parameter : net->parameters())
      parameter.mutable_grad() = torch::randn_like(parameter);
  }
  Ours ours(ours_net->parameters(), options);
  Theirs theirs(theirs_net->parameters(), options);
  report(
      name + "_over_libtorch",
      interleave(20, 10, finished([&] { ours.step(); }), finished([&] {
                   theirs.step();
                 })));
}

void measure_clipping() {
  nn::Sequential net = make_net(512, 32);
  for (Tensor& parameter : net->parameters())
    parameter.mutable_grad() = torch::randn_like(parameter);
  const Accelerator accelerator({.world = alone()});
  auto model = accelerator.prepare(net);
  const std::vector<Tensor> parameters = net->parameters();
  report(
      "clip_over_libtorch",
      interleave(
          20,
          10,
          finished([&] {
            static_cast<void>(accelerator.clip_grad_norm_(parameters, 1.0));
          }),
          finished([&] {
            static_cast<void>(nn::utils::clip_grad_norm_(parameters, 1.0));
          })));
}

struct Training {
  Training(const FP8Recipe* recipe, std::int64_t width, std::int64_t num_rows)
      : accelerator([&] {
          AcceleratorOptions options{
              .mixed_precision =
                  recipe != nullptr ? Precision::fp8 : Precision::bf16,
              .world = alone()};
          if (recipe != nullptr) options.fp8_recipe = *recipe;
          return options;
        }()),
        net(make_net(width, 4)),
        sgd(net->parameters(), 1e-3),
        prepared(accelerator.prepare(net, sgd)),
        x(torch::randn(
            {num_rows, width},
            torch::dtype(torch::kBFloat16).device(kDevice))) {}

  void step() {
    auto& [model, optimizer] = prepared;
    optimizer.zero_grad();
    accelerator.backward(model(x).square().mean());
    optimizer.step();
  }

  Accelerator accelerator;
  nn::Sequential net;
  torch::optim::SGD sgd;
  std::tuple<Model<nn::SequentialImpl>, Optimizer> prepared;
  Tensor x;
};

void measure_float8() {
  for (const std::int64_t width : {2048, 8192}) {
    for (const auto& [name, recipe] :
         accelerate::testing::float8_recipes_of_all_layers()) {
      // Hopper cannot multiply MXFP8; it would be emulated.
      if (name == "mxfp8") continue;
      Training ours(&recipe, width, 8192), bf16(nullptr, width, 8192);
      report(
          "fp8_step_over_bf16_" + name + "_" + std::to_string(width),
          interleave(10, 3, finished([&] { ours.step(); }), finished([&] {
                       bf16.step();
                     })));
    }
  }
}

constexpr std::int64_t kWidth = 4096;
constexpr int kBlocks = 16;

struct BlockImpl : nn::Module {
  Tensor forward(const Tensor& x) { return x + down(torch::relu(up(x))); }
  nn::Linear up = register_module("up", nn::Linear(kWidth, kWidth));
  nn::Linear down = register_module("down", nn::Linear(kWidth, kWidth));
};
TORCH_MODULE(Block);

struct NetImpl : nn::Module {
  NetImpl() {
    for (int i = 0; i < kBlocks; ++i)
      blocks.push_back(register_module("block" + std::to_string(i), Block()));
  }
  Tensor forward(Tensor x) {
    for (auto& block : blocks) x = block(x);
    return x;
  }
  std::vector<Block> blocks;
};
TORCH_MODULE(Net);

// Weights of 2 GB in host memory, compared with the longer of the forward on
// the device and one copy of the same number of bytes from pinned memory.
void measure_offloaded_forwards() {
  const torch::NoGradGuard no_grad;
  Net net;
  double bytes = 0;
  for (const Tensor& parameter : net->parameters())
    bytes += static_cast<double>(parameter.nbytes());
  const auto host = torch::empty(
      {static_cast<std::int64_t>(bytes)},
      torch::dtype(torch::kByte).pinned_memory(true));
  Tensor there = torch::empty_like(host, torch::device(kDevice));
  for (const std::int64_t num_rows : {64, 1024, 4096}) {
    const Tensor x = torch::randn({num_rows, kWidth}, torch::device(kDevice));
    benchmarks::Interleaved link;
    {
      auto big = cpu_offload(
          net,
          {.execution_device = kDevice, .preload_module_classes = {"Block"}});
      link = interleave(6, 1, finished([&] { big(x); }), finished([&] {
                          there.copy_(host, /*non_blocking=*/true);
                        }));
      big.dispatch().release();
    }
    const benchmarks::Interleaved resident =
        interleave(6, 1, finished([&] { net(x); }), [] {});
    net->to(at::kCPU);
    const double floor = std::max(
        benchmarks::median(link.baseline), benchmarks::median(resident.ours));
    const double found = benchmarks::median(link.ours);
    benchmarks::report(
        {"gpu",
         "cpu_to_device_over_floor_" + std::to_string(num_rows) + "_rows",
         found,
         "us",
         floor,
         found / floor,
         link.ours.size()});
  }
}

// The same weights on disk: forwards one after another with the file in the
// page cache (warm), and forwards without (cold), which begin with no weights
// in memory. benchmarks/peers/gpu.py measures the same with Accelerate.
void measure_forwards_from_disk() {
  const torch::NoGradGuard no_grad;
  constexpr int kRounds = 5;
  std::string name =
      (std::filesystem::temp_directory_path() / "gpu-XXXXXX").string();
  if (::mkdtemp(name.data()) == nullptr) return;
  const std::filesystem::path directory = name;
  save_model(*Net(), directory, {.max_shard_size = "1000GB"});
  const std::filesystem::path file = directory / "model.safetensors";
  const Tensor x = torch::randn({64, kWidth}, torch::device(kDevice));
  {
    auto big = load_checkpoint_and_dispatch(
        init_empty_weights([] { return Net(); }),
        directory,
        {.device_map = DeviceMap{{"", "disk"}},
         .preload_module_classes = {"Block"},
         .main_device = 0});
    auto forward = finished([&] { big(x); });
    benchmarks::read_plainly(file);
    for (const bool is_cold : {false, true}) {
      std::vector<double> times;
      // The first one learns the order.
      for (int i = -1; i < kRounds; ++i) {
        if (is_cold) {
          big.dispatch().offload();
          benchmarks::forget(file);
        }
        const auto start = std::chrono::steady_clock::now();
        forward();
        const std::chrono::duration<double, std::milli> elapsed =
            std::chrono::steady_clock::now() - start;
        if (i >= 0) times.push_back(elapsed.count());
      }
      benchmarks::report(
          {"gpu",
           is_cold ? "disk_to_device_ms_cold" : "disk_to_device_ms_warm",
           benchmarks::median(times),
           "ms",
           0,
           0,
           kRounds});
    }
  }
  std::filesystem::remove_all(directory);
}

}  // namespace

int main() {
  if (const std::string missing = testing::missing_gpu(); !missing.empty()) {
    std::fprintf(stderr, "gpu: not measured: %s\n", missing.c_str());
    return 2;
  }
  measure_steps();
  measure_captured_steps();
  measure_optimizer<optim::AdamW, torch::optim::AdamW>(
      "adamw", torch::optim::AdamWOptions(1e-3));
  measure_optimizer<optim::SGD, torch::optim::SGD>(
      "sgd_momentum", torch::optim::SGDOptions(1e-3).momentum(0.9));
  measure_clipping();
  measure_float8();
  measure_offloaded_forwards();
  measure_forwards_from_disk();
  return 0;
}
