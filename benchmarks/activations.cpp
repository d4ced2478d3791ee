// Peak resident memory (above that before the first step) and step time of a
// transformer of eight layers on one CPU, recomputing its layers' activations
// in the backward pass compared with keeping them.
#include <chrono>
#include <string>
#include <vector>

#include <malloc.h>

#include <torch/torch.h>

#include <accelerate/accelerate.h>

#include "memory.h"
#include "report.h"

namespace {

namespace nn = torch::nn;
using namespace accelerate;
using Clock = std::chrono::steady_clock;

constexpr int kLayers = 8;
constexpr int kSteps = 4;
constexpr int kRepeats = 3;

struct NetImpl : nn::Module {
  NetImpl() {
    for (int i = 0; i < kLayers; ++i) {
      layers->push_back(
          nn::TransformerEncoderLayer(nn::TransformerEncoderLayerOptions(256, 8)
                                          .dim_feedforward(1024)
                                          .dropout(0)));
    }
    register_module("layers", layers);
  }
  torch::Tensor forward(torch::Tensor h) {
    for (const auto& layer : *layers)
      h = layer->as<nn::TransformerEncoderLayer>()->forward(h);
    return h;
  }
  nn::ModuleList layers;
};
TORCH_MODULE(Net);

struct Measured {
  std::vector<double> bytes, milliseconds;
};

void measure(bool checkpoints, Measured& measured) {
  AcceleratorOptions options{.cpu = true};
  if (checkpoints) {
    options.parallel.activation_checkpointing =
        ActivationCheckpointingOptions();
  }
  const Accelerator accelerator(options);
  Net net;
  torch::optim::SGD sgd(net->parameters(), 1e-3);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  const auto x = torch::randn({256, 8, 256});
  benchmarks::forget_peak();
  const double before = benchmarks::memory_of_process("VmRSS");
  for (int step = 0; step < kSteps; ++step) {
    const auto start = Clock::now();
    optimizer.zero_grad();
    accelerator.backward(model(x).pow(2).mean());
    optimizer.step();
    const std::chrono::duration<double, std::milli> took = Clock::now() - start;
    // The first step also verifies the recomputation and allocates memory.
    if (step > 0) measured.milliseconds.push_back(took.count());
  }
  measured.bytes.push_back(benchmarks::memory_of_process("VmHWM") - before);
}

}  // namespace

int main() {
  mallopt(M_MMAP_THRESHOLD, 1 << 20);
  Measured kept, again;
  for (int i = 0; i < kRepeats; ++i) {
    measure(true, again);
    measure(false, kept);
  }
  const auto report = [](const std::string& metric,
                         const std::vector<double>& values,
                         const std::vector<double>& baseline,
                         double scale,
                         const std::string& unit) {
    const double value = benchmarks::median(values) / scale;
    const double other = benchmarks::median(baseline) / scale;
    benchmarks::report(
        {"activations",
         metric,
         value,
         unit,
         other,
         value / other,
         values.size()});
  };
  report("checkpointed_peak_mb", again.bytes, kept.bytes, 1e6, "MB");
  report(
      "checkpointed_step_ms", again.milliseconds, kept.milliseconds, 1, "ms");
}
