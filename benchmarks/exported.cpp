// Programs of torch.export beside the same models written in C++, which take
// turns: operators on few numbers, steps and peak memory of a GPT; and how long
// the program of a large model takes to load. Times are CPU times of one thread.
// make_exported_programs.py makes the programs.
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/torch.h>

#include <accelerate/accelerate.h>
#include <accelerate/exported_model.h>

#include "interleave.h"
#include "live_bytes.h"
#include "model.h"

namespace {

namespace nn = torch::nn;
using namespace accelerate::benchmarks;
using accelerate::ExportedModel;
using accelerate::load_exported;
using torch::Tensor;

const std::filesystem::path kPrograms = EXPORTED_PROGRAMS;

/// The model of calls.pt2.
struct CallsImpl : nn::Module {
  CallsImpl() {
    register_module("linear", linear);
    register_module("norm", norm);
  }
  Tensor forward(Tensor x) {
    for (int layer = 0; layer < 16; ++layer) {
      const Tensor normed =
          torch::layer_norm(x, {4}, norm->weight, norm->bias, 1e-5);
      const Tensor h =
          torch::relu(torch::linear(normed, linear->weight, linear->bias));
      x = h.view({2, 2, 4}).transpose(0, 1).reshape({4, 4}) * 0.5 + x;
    }
    return x;
  }
  nn::Linear linear{4, 4};
  nn::LayerNorm norm{nn::LayerNormOptions({4})};
};
TORCH_MODULE(Calls);

double least(const std::vector<double>& values) {
  return *std::min_element(values.begin(), values.end());
}

void report_least(const std::string& metric, const Interleaved& times) {
  const double ours = least(times.ours), baseline = least(times.baseline);
  report(
      {"exported",
       metric,
       ours,
       "us",
       baseline,
       ours / baseline,
       times.ours.size()});
}

// What an operator costs more than in C++, in microseconds.
void compare_calls() {
  ExportedModel exported = load_exported(kPrograms / "calls.pt2");
  Calls by_hand;
  const Tensor x = torch::randn({4, 4});
  for (const bool has_gradients : {false, true}) {
    const torch::AutoGradMode mode(has_gradients);
    const Interleaved times = interleave<ThreadTime>(
        400, 20, [&] { exported->forward(x); }, [&] { by_hand->forward(x); });
    const double added = (least(times.ours) - least(times.baseline)) /
        static_cast<double>(exported->num_instructions());
    const std::string metric =
        has_gradients ? "operator_with_gradient_us" : "operator_us";
    report({"exported", metric, added, "us", 0, 0, times.ours.size()});
  }
}

Gpt gpt_by_hand() {
  torch::manual_seed(1);
  GptOptions options;
  options.block_size = 128;
  options.num_layers = 4;
  options.num_heads = 4;
  options.width = 256;
  return Gpt(options);
}

// With the weights of the one by hand; those in the file are 0.
ExportedModel exported_gpt() {
  ExportedModel gpt = load_exported(kPrograms / "gpt.pt2");
  const auto from = gpt_by_hand()->named_parameters();
  const torch::NoGradGuard no_grad;
  for (auto& item : gpt->named_parameters())
    item.value().copy_(from[item.key()]);
  return gpt;
}

Tensor logits_of(const Tensor& logits) { return logits; }
Tensor logits_of(const accelerate::ExportedOutputs& outputs) {
  return outputs[0];
}

Tensor loss_of(const Tensor& logits, const Tensor& targets) {
  return torch::cross_entropy_loss(logits.flatten(0, 1), targets.flatten());
}

/// A step with AdamW. Returns the loss.
using Step = std::function<double()>;

template <class Net>
Step plain_step(Net net, const Tensor& tokens) {
  const auto adamw = std::make_shared<torch::optim::AdamW>(
      net->parameters(), torch::optim::AdamWOptions(3e-4));
  return [=]() mutable {
    const Tensor loss = loss_of(logits_of(net->forward(tokens)), tokens);
    loss.backward();
    adamw->step();
    adamw->zero_grad();
    return loss.template item<double>();
  };
}

template <class Net>
Step prepared_step(Net net, const Tensor& tokens) {
  accelerate::AcceleratorOptions options;
  options.cpu = true;
  const auto accelerator = std::make_shared<accelerate::Accelerator>(options);
  const auto adamw = std::make_shared<torch::optim::AdamW>(
      net->parameters(), torch::optim::AdamWOptions(3e-4));
  const auto [model, optimizer] = accelerator->prepare(net, adamw);
  return [=, model = model, optimizer = optimizer] {
    const Tensor loss = loss_of(logits_of(model(tokens)), tokens);
    accelerator->backward(loss);
    optimizer.step();
    optimizer.zero_grad();
    return loss.template item<double>();
  };
}

// The peak of a step; the first one also makes the optimizer's state.
std::int64_t peak_of(const Step& step) {
  step();
  const auto live = std::make_shared<LiveBytes>();
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, live);
  step();
  return live->peak;
}

void compare_steps() {
  const Tensor tokens = torch::randint(256, {8, 128}, torch::kLong);
  const auto compare =
      [](const std::string& name, const Step& exported, const Step& by_hand) {
        if (exported() != by_hand())
          throw std::runtime_error("the two models have different losses");
        report_least(
            name + "_us", interleave<ThreadTime>(30, 1, exported, by_hand));
        const auto ours = static_cast<double>(peak_of(exported));
        const auto baseline = static_cast<double>(peak_of(by_hand));
        report(
            {"exported",
             name + "_peak_mb",
             ours / 1e6,
             "MB",
             baseline / 1e6,
             ours / baseline,
             1});
      };
  compare(
      "gpt_step",
      plain_step(exported_gpt(), tokens),
      plain_step(gpt_by_hand(), tokens));
  compare(
      "gpt_prepared_step",
      prepared_step(exported_gpt(), tokens),
      prepared_step(gpt_by_hand(), tokens));
}

void time_load() {
  std::vector<double> seconds;
  for (int i = 0; i < 5; ++i) {
    const auto start = ThreadTime::now();
    const ExportedModel llama = load_exported(kPrograms / "llama_7b.pt2");
    const std::chrono::duration<double> took = ThreadTime::now() - start;
    seconds.push_back(took.count());
  }
  report({"exported", "load_7b_s", least(seconds), "s", 0, 0, seconds.size()});
}

}  // namespace

int main() {
  torch::set_num_threads(1);
  torch::manual_seed(1);
  keep_freed_memory();
  compare_calls();
  compare_steps();
  time_load();
  return 0;
}
