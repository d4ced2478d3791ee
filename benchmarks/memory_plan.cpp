// The predicted memory of a rank, against the measured peak of resident memory
// above that of an idle rank, for twelve models, replicated, ZeRO-1, 2 and 3 over
// two CPU ranks, in fp32 and bf16, with and without recomputation.
// First argument: only the models of these numbers, "0,5".
#include <malloc.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include <torch/torch.h>

#include <accelerate/accelerate.h>

#include "memory.h"
#include "report.h"

namespace {

namespace nn = torch::nn;
using namespace accelerate;

constexpr int kRanks = 2;
constexpr int kSteps = 2;

/// A multi-layer perceptron of residual blocks.
struct BlockImpl : nn::Module {
  BlockImpl(std::int64_t width, std::int64_t inner, bool is_normed)
      : up(width, inner), down(inner, width), has_norm(is_normed) {
    register_module("up", up);
    register_module("down", down);
    if (has_norm) {
      norm = nn::LayerNorm(nn::LayerNormOptions({width}));
      register_module("norm", norm);
    }
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return x + down(torch::gelu(up(has_norm ? norm(x) : x)));
  }
  nn::Linear up;
  nn::Linear down;
  nn::LayerNorm norm{nullptr};
  bool has_norm;
};
TORCH_MODULE(Block);

/// Attention and a perceptron, before both a normalisation.
struct LayerImpl : nn::Module {
  LayerImpl(std::int64_t width, std::int64_t num_heads)
      : heads(num_heads),
        qkv(register_module("qkv", nn::Linear(width, 3 * width))),
        out(register_module("out", nn::Linear(width, width))),
        norm(register_module(
            "norm",
            nn::LayerNorm(nn::LayerNormOptions({width})))),
        mlp(register_module("mlp", Block(width, 4 * width, true))) {}
  torch::Tensor forward(const torch::Tensor& x) {
    const auto parts = qkv(norm(x)).chunk(3, -1);
    const auto split = [&](const torch::Tensor& each) {
      return each.view({x.size(0), x.size(1), heads, -1}).transpose(1, 2);
    };
    const auto attended = torch::scaled_dot_product_attention(
        split(parts[0]), split(parts[1]), split(parts[2]), {}, 0.0, true);
    return mlp(x + out(attended.transpose(1, 2).reshape(x.sizes())));
  }
  std::int64_t heads;
  nn::Linear qkv, out;
  nn::LayerNorm norm;
  Block mlp;
};
TORCH_MODULE(Layer);

struct Shape {
  std::string name;
  enum Kind { mlp, normed_mlp, gpt, convolutions } kind;
  std::int64_t width;
  std::int64_t inner;  // heads of a gpt
  int depth;
  std::int64_t batch;
  std::int64_t length = 0;
};

const std::vector<Shape>& shapes() {
  static const std::vector<Shape> all{
      {"mlp_deep", Shape::mlp, 512, 512, 12, 512},
      {"mlp_wide", Shape::mlp, 1024, 2048, 2, 256},
      {"mlp_batch", Shape::mlp, 512, 1024, 4, 4096},
      {"mlp_few", Shape::mlp, 1024, 4096, 1, 128},
      {"normed_deep", Shape::normed_mlp, 512, 1024, 6, 512},
      {"normed_wide", Shape::normed_mlp, 1024, 2048, 2, 1024},
      {"normed_batch", Shape::normed_mlp, 384, 768, 6, 4096},
      {"gpt_small", Shape::gpt, 256, 4, 4, 8, 128},
      {"gpt_long", Shape::gpt, 256, 4, 3, 4, 512},
      {"gpt_wide", Shape::gpt, 384, 6, 3, 8, 128},
      {"conv_small", Shape::convolutions, 64, 3, 6, 16, 32},
      {"conv_wide", Shape::convolutions, 128, 3, 6, 8, 32}};
  return all;
}

/// Any of the models: an optional embedding and stem, layers, and a head.
struct NetImpl : nn::Module {
  explicit NetImpl(const Shape& of) : shape(of) {
    for (int i = 0; i < shape.depth; ++i) {
      switch (shape.kind) {
        case Shape::mlp:
          layers->push_back(Block(shape.width, shape.inner, false));
          break;
        case Shape::normed_mlp:
          layers->push_back(Block(shape.width, shape.inner, true));
          break;
        case Shape::gpt:
          layers->push_back(Layer(shape.width, shape.inner));
          break;
        case Shape::convolutions:
          layers->push_back(nn::Sequential(
              nn::Conv2d(
                  nn::Conv2dOptions(shape.width, shape.width, 3).padding(1)),
              nn::BatchNorm2d(shape.width),
              nn::ReLU()));
          break;
      }
    }
    register_module("layers", layers);
    if (shape.kind == Shape::gpt)
      embedding =
          register_module("embedding", nn::Embedding(8192, shape.width));
  }
  torch::Tensor forward(torch::Tensor x) {
    if (embedding) x = embedding(x);
    for (const auto& layer : *layers) {
      if (shape.kind == Shape::gpt) {
        x = layer->as<Layer>()->forward(x);
      } else if (shape.kind == Shape::convolutions) {
        x = layer->as<nn::Sequential>()->forward(x);
      } else {
        x = layer->as<Block>()->forward(x);
      }
    }
    return x;
  }
  Shape shape;
  nn::ModuleList layers;
  nn::Embedding embedding{nullptr};
};
TORCH_MODULE(Net);

torch::Tensor batch_of(const Shape& shape, std::int64_t samples) {
  switch (shape.kind) {
    case Shape::gpt:
      return torch::randint(0, 8192, {samples, shape.length});
    case Shape::convolutions:
      return torch::randn({samples, shape.width, shape.length, shape.length});
    default:
      return torch::randn({samples, shape.width});
  }
}

struct Run {
  std::size_t model;
  MemorySplit split;
  FloatType precision;
  bool recomputes;

  [[nodiscard]] const Shape& shape() const { return shapes()[model]; }
  // Processors without instructions for bf16 multiply a hundredfold slower.
  [[nodiscard]] std::int64_t batch() const {
    const std::int64_t batch = shape().batch;
    return precision == FloatType::fp32 ? batch
                                        : std::max<std::int64_t>(batch / 64, 2);
  }
};

ParallelOptions parallel_options(const Run& run) {
  ParallelOptions options;
  if (run.split == MemorySplit::full_shard) {
    options.fully_sharded = FullyShardedDataParallelOptions();
  } else if (run.split != MemorySplit::replicated) {
    options.deepspeed = DeepSpeedOptions();
    options.deepspeed->zero_stage = run.split == MemorySplit::zero_1 ? 1 : 2;
  }
  if (run.recomputes)
    options.activation_checkpointing = ActivationCheckpointingOptions();
  return options;
}

// Trains a few steps.
void train(Accelerator& accelerator, const Shape& shape, std::int64_t batch) {
  Net net(shape);
  torch::optim::AdamW adamw(net->parameters(), 1e-4);
  auto [model, optimizer] = accelerator.prepare(net, adamw);
  for (int step = 0; step < kSteps; ++step) {
    const auto x = batch_of(shape, batch);
    accelerator.backward(model(x).to(torch::kFloat).mean());
    optimizer.step();
    optimizer.zero_grad();
  }
}

using benchmarks::forget_peak;
using benchmarks::memory_of_process;

void measure(const Run& run, const std::string& file) {
  // Otherwise glibc's threshold grows, and freed tensors stay in its heap.
  mallopt(M_MMAP_THRESHOLD, 128 << 10);
  mallopt(M_TRIM_THRESHOLD, 128 << 10);
  torch::set_num_threads(1);
  const Shape& shape = run.shape();
  Accelerator accelerator(
      {.mixed_precision =
           run.precision == FloatType::fp32 ? Precision::no : Precision::bf16,
       .parallel = parallel_options(run),
       .journal = false});
  // Loads LibTorch's code and what its libraries keep.
  Shape tiny = shape;
  tiny.width = 64;
  tiny.inner = shape.kind == Shape::gpt ? 4 : 64;
  tiny.depth = 2;
  tiny.length = std::min<std::int64_t>(shape.length, 16);
  train(accelerator, tiny, 2);
  accelerator.free_memory();
  accelerator.wait_for_everyone();
  forget_peak();
  const double idle = memory_of_process("VmRSS");
  train(accelerator, shape, run.batch());
  const double peak = memory_of_process("VmHWM") - idle;
  const auto peaks = accelerator.world().group().all_gather(
      torch::tensor({peak}, torch::kDouble));
  if (!accelerator.is_main_process()) return;
  double highest = 0;
  for (const auto& of_rank : peaks)
    highest = std::max(highest, of_rank.item<double>());
  std::ofstream(file) << highest;
}

std::string name_of_run(const Run& run) {
  return shapes()[run.model].name + "_" +
      std::to_string(static_cast<int>(run.split)) +
      (run.precision == FloatType::fp32 ? "_fp32" : "_bf16") +
      (run.recomputes ? "_recomputed" : "");
}

std::vector<Run> all_runs(const std::string& models) {
  std::vector<Run> runs;
  for (std::size_t model = 0; model < shapes().size(); ++model) {
    const std::string wanted = "," + models + ",";
    if (!models.empty() &&
        wanted.find("," + std::to_string(model) + ",") == std::string::npos)
      continue;
    for (const MemorySplit split :
         {MemorySplit::replicated,
          MemorySplit::zero_1,
          MemorySplit::zero_2,
          MemorySplit::full_shard}) {
      for (const FloatType precision : {FloatType::fp32, FloatType::bf16}) {
        for (const bool recomputes : {false, true})
          runs.push_back({model, split, precision, recomputes});
      }
    }
  }
  return runs;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<Run> runs = all_runs(argc > 1 ? argv[1] : "");
  std::vector<double> errors;
  std::optional<std::size_t> planned;
  std::optional<MemoryPlan> plan;
  for (const Run& run : runs) {
    const std::string file =
        "/tmp/memory_plan_" + std::to_string(getuid()) + "_" + name_of_run(run);
    launch_function(
        [&] { measure(run, file); },
        {.num_processes = kRanks, .name = name_of_run(run), .cpu = true});
    // Ranks run this program too, but do not report.
    double peak = 0;
    if (!(std::ifstream(file) >> peak)) continue;
    std::remove(file.c_str());
    const Shape& shape = run.shape();
    if (planned != run.model) {
      planned = run.model;
      Net net(shape);
      Accelerator accelerator({.cpu = true, .journal = false});
      plan = accelerator.plan_memory(
          net,
          batch_of(shape, 4),
          {.num_ranks = kRanks, .batch_size = shape.batch});
    }
    MemoryCase at = plan->row(run.split, run.precision, run.recomputes).at;
    at.micro_batch = run.batch();
    const MemoryRow row = plan->row(at);
    const double predicted = static_cast<double>(row.total());
    errors.push_back(100 * (predicted - peak) / peak);
    std::fprintf(
        stderr,
        "%-32s measured %7.1f MB, predicted %7.1f, error %6.1f %%  (w %.1f g "
        "%.1f o %.1f b %.1f u %.1f a %.1f s %.1f)\n",
        name_of_run(run).c_str(),
        peak / 1e6,
        predicted / 1e6,
        errors.back(),
        static_cast<double>(row.weights) / 1e6,
        static_cast<double>(row.gradients) / 1e6,
        static_cast<double>(row.optimizer_state) / 1e6,
        static_cast<double>(row.buckets) / 1e6,
        static_cast<double>(row.units) / 1e6,
        static_cast<double>(row.activations) / 1e6,
        static_cast<double>(row.workspace) / 1e6);
  }
  if (errors.empty()) return 0;
  std::vector<double> sizes;
  double lowest = errors.front();
  for (const double error : errors) {
    sizes.push_back(std::abs(error));
    lowest = std::min(lowest, error);
  }
  std::sort(sizes.begin(), sizes.end());
  const std::size_t most = (sizes.size() * 95 + 99) / 100 - 1;
  benchmarks::report(
      {"memory_plan",
       "error_percent_of_95_percent",
       sizes[most],
       "%",
       5,
       sizes[most] / 5,
       sizes.size()});
  benchmarks::report(
      {"memory_plan",
       "most_below_percent",
       std::max(-lowest, 0.0),
       "%",
       10,
       std::max(-lowest, 0.0) / 10,
       sizes.size()});
}
