// Float8 on a CPU: casts over a memcpy, bytes that linear layers keep for
// backward and that shards send over bf16, and emulated steps.
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/torch.h>

#include <accelerate/accelerate.h>
#include <accelerate/fp8.h>

#include "interleave.h"
#include "live_bytes.h"
#include "precision/fp8/float8_matrix.h"
#include "support/run_counted.h"

namespace {

namespace nn = torch::nn;
using namespace accelerate;
using torch::Tensor;

constexpr std::int64_t kWidth = 512;
constexpr int kLayers = 4;

std::vector<std::pair<std::string, FP8Recipe>> recipes() {
  const auto named = [](const char* name) {
    return AORecipeKwargs{
        Float8LinearConfig::from_recipe_name(name),
        [](const std::string&, const nn::Module&) { return true; }};
  };
  return {
      {"tensorwise", named("tensorwise")},
      {"rowwise", named("rowwise")},
      {"rowwise_with_gw_hp", named("rowwise_with_gw_hp")},
      {"delayed", TERecipeKwargs{.amax_history_len = 16}},
      {"mxfp8", TERecipeKwargs{.use_mxfp8_block_scaling = true}}};
}

nn::Sequential make_net(bool has_activations) {
  torch::manual_seed(1);
  nn::Sequential net;
  for (int i = 0; i < kLayers; ++i) {
    net->push_back(nn::Linear(kWidth, kWidth));
    if (has_activations) net->push_back(nn::GELU());
  }
  return net;
}

// Casts a bf16 matrix of 32 MiB.
void measure_casts() {
  const Tensor from = torch::randn({4096, 4096}).to(torch::kBFloat16);
  Tensor to = torch::empty_like(from);
  const auto copy = [&] {
    std::memcpy(to.mutable_data_ptr(), from.const_data_ptr(), from.nbytes());
  };
  const Tensor scale = torch::full({}, 64.F);
  const auto report = [&](const std::string& metric, auto&& cast) {
    benchmarks::report_interleaved(
        "fp8", metric, benchmarks::interleave(20, 3, cast, copy));
  };
  report("cast_over_memcpy", [&] {
    static_cast<void>(
        accelerate::detail::cast_with_scale(from, at::kFloat8_e4m3fn, scale));
  });
  report("measured_cast_over_memcpy", [&] {
    static_cast<void>(
        accelerate::detail::cast_and_measure(from, at::kFloat8_e4m3fn, scale));
  });
  const auto dynamically =
      [&](accelerate::detail::Float8Granularity granularity) {
        static_cast<void>(accelerate::detail::cast_dynamically(
            from, {at::kFloat8_e4m3fn, granularity}, 1));
      };
  report("dynamic_cast_over_memcpy", [&] {
    dynamically(accelerate::detail::Float8Granularity::tensorwise);
  });
  report("rowwise_cast_over_memcpy", [&] {
    dynamically(accelerate::detail::Float8Granularity::axiswise);
  });
  report("mxfp8_cast_over_memcpy", [&] {
    dynamically(accelerate::detail::Float8Granularity::blocks);
  });
}

AcceleratorOptions options_of(const FP8Recipe* recipe, bool has_autocast) {
  AcceleratorOptions options{
      .mixed_precision = recipe != nullptr ? Precision::fp8 : Precision::bf16,
      .cpu = true};
  if (recipe != nullptr) options.fp8_recipe = *recipe;
  options.autocast.enabled = has_autocast;
  return options;
}

// Returns the memory that a forward leaves behind for its backward.
std::int64_t kept_bytes(const FP8Recipe* recipe, bool has_activations) {
  const Accelerator accelerator(options_of(recipe, /*has_autocast=*/true));
  nn::Sequential net = make_net(has_activations);
  auto model = accelerator.prepare(net);
  // The input is fp32, so that copies kept of it count in either precision.
  const Tensor x = torch::randn({16384, kWidth});
  const auto live = std::make_shared<benchmarks::LiveBytes>();
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, live);
  const Tensor loss = model(x).sum();
  return live->count;
}

void measure_kept_bytes() {
  for (const bool has_activations : {false, true}) {
    const auto bf16 = static_cast<double>(kept_bytes(nullptr, has_activations));
    for (const auto& [name, recipe] : recipes()) {
      const auto found =
          static_cast<double>(kept_bytes(&recipe, has_activations));
      benchmarks::report(
          {"fp8",
           (has_activations ? "kept_bytes_with_gelu_over_bf16_"
                            : "kept_activation_bytes_over_bf16_") +
               name,
           found / 1e6,
           "MB",
           bf16 / 1e6,
           found / bf16,
           1});
    }
  }
}

/// A net that trains.
struct Trained {
  Trained(const FP8Recipe* recipe, bool has_autocast)
      : accelerator(options_of(recipe, has_autocast)),
        sgd(net->parameters(), 1e-3),
        prepared(accelerator.prepare(net, sgd)) {}

  void step() {
    auto& [model, optimizer] = prepared;
    optimizer.zero_grad();
    accelerator.backward(model(x).square().mean());
    optimizer.step();
  }

  Accelerator accelerator;
  nn::Sequential net = make_net(/*has_activations=*/true);
  torch::optim::SGD sgd;
  std::tuple<Model<nn::SequentialImpl>, Optimizer> prepared;
  Tensor x = torch::randn({512, kWidth});
};

void measure_steps() {
  for (const auto& [name, recipe] : recipes()) {
    Trained emulated(&recipe, /*has_autocast=*/true);
    Trained bf16(nullptr, /*has_autocast=*/true);
    benchmarks::report_interleaved(
        "fp8",
        "emulated_step_over_bf16_" + name,
        benchmarks::interleave(
            10, 2, [&] { emulated.step(); }, [&] { bf16.step(); }));
  }
  // Computes in fp32 except for the casts, as torchao's emulation does.
  for (const auto& [name, recipe] : recipes()) {
    if (!std::holds_alternative<AORecipeKwargs>(recipe)) continue;
    Trained emulated(&recipe, /*has_autocast=*/false);
    nn::Sequential net = make_net(/*has_activations=*/true);
    torch::optim::SGD sgd(net->parameters(), 1e-3);
    benchmarks::report_interleaved(
        "fp8",
        "step_over_fp32_" + name,
        benchmarks::interleave(
            10,
            2,
            [&] { emulated.step(); },
            [&] {
              sgd.zero_grad();
              net->forward(emulated.x).square().mean().backward();
              sgd.step();
            }));
  }
}

// Returns the bytes that the first of two ranks sends in a forward of a sharded
// net, in fp8 or in bf16, where parameters are gathered in bf16.
double gathered_bytes(bool in_float8) {
  double bytes = 0;
  accelerate::testing::run_counted(
      2, [&](const WorldOptions& world, auto& counter) {
        const FP8Recipe recipe = AORecipeKwargs{
            .module_filter_func = [](const std::string&, const nn::Module&) {
              return true;
            }};
        AcceleratorOptions options =
            options_of(in_float8 ? &recipe : nullptr, /*has_autocast=*/true);
        options.world = world;
        options.parallel.fully_sharded = FullyShardedDataParallelOptions{
            .mixed_precision_policy =
                MixedPrecisionPolicy{.param_dtype = FloatType::bf16}};
        const Accelerator accelerator(options);
        nn::Sequential net = make_net(/*has_activations=*/true);
        auto model = accelerator.prepare(net);
        const torch::NoGradGuard no_grad;
        const Tensor x = torch::randn({16, kWidth});
        static_cast<void>(model(x));
        counter.reset();
        static_cast<void>(model(x));
        if (*world.rank == 0) bytes = counter.total().bytes;
      });
  return bytes;
}

void measure_gathered_bytes() {
  const double float8 = gathered_bytes(true);
  const double bf16 = gathered_bytes(false);
  benchmarks::report(
      {"fp8",
       "gathered_bytes_over_bf16",
       float8 / 1e6,
       "MB",
       bf16 / 1e6,
       float8 / bf16,
       1});
}

}  // namespace

int main() {
  benchmarks::keep_freed_memory();
  torch::set_num_threads(1);
  measure_casts();
  measure_kept_bytes();
  measure_gathered_bytes();
  measure_steps();
  return 0;
}
