// Every technique with every precision, window and number of ranks ends with
// the weights of one process on the same global batches. All cases share one
// net and one loop (support/parity_task.h), so that a failure names its case.
#include <cmath>
#include <map>
#include <optional>
#include <ostream>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include <accelerate/accelerate.h>

#include "parallel/plan/plan.h"
#include "support/expect_error.h"
#include "support/gpu_device.h"
#include "support/parity_task.h"

namespace accelerate {
namespace techniques_test {

using testing::ParityRun;
using testing::train_parity_net;
using testing::Weights;

struct Technique {
  std::string name;
  ParallelOptions parallel = {};
  /// Parameters begin in the precision's dtype, with fp32 masters.
  bool master_weights = false;
  int divides_ranks = 1;
  /// All ranks are along this axis.
  std::optional<Axis> axis = std::nullopt;
  bool has_experts = false;
  /// Uses MS-AMP's recipe in fp8.
  bool is_ms_amp = false;
  /// Used in fp8.
  Float8Attention float8_attention = Float8Attention::none;
};

void PrintTo(const Technique& technique, std::ostream* out) {
  *out << technique.name;
}

std::vector<Technique> techniques() {
  FullyShardedDataParallelOptions by_size{
      .auto_wrap_policy = AutoWrapPolicy::size_based_wrap,
      .min_num_params = 20};
  FullyShardedDataParallelOptions recomputed = by_size;
  recomputed.activation_checkpointing = true;
  FullyShardedDataParallelOptions kept = by_size;
  kept.fsdp_version = 2;
  kept.reshard_after_forward = false;
  const ColwiseParallel gathered{.output_layouts = Replicate{}};
  return {
      {.name = "replicate"},
      {.name = "replicate_in_small_buckets",
       .parallel =
           {.replicate_options =
                {.bucket_bytes = 64,
                 .first_bucket_bytes = 64,
                 .gradient_as_bucket_view = true}}},
      {.name = "replicate_a_static_graph",
       .parallel = {.replicate_options = {.static_graph = true}}},
      {.name = "master_weights", .master_weights = true},
      {.name = "activation_checkpointing",
       .parallel =
           {.activation_checkpointing =
                ActivationCheckpointingOptions{
                    .auto_wrap_policy = AutoWrapPolicy::size_based_wrap,
                    .min_num_params = 20}}},
      {.name = "zero1",
       .parallel = {.deepspeed = DeepSpeedOptions{.zero_stage = 1}}},
      {.name = "zero2",
       .parallel = {.deepspeed = DeepSpeedOptions{.zero_stage = 2}}},
      {.name = "zero3",
       .parallel = {.deepspeed = DeepSpeedOptions{.zero_stage = 3}}},
      {.name = "fully_sharded", .parallel = {.fully_sharded = by_size}},
      {.name = "fully_sharded_kept_after_forward",
       .parallel = {.fully_sharded = kept}},
      {.name = "fully_sharded_and_recomputed",
       .parallel = {.fully_sharded = recomputed}},
      {.name = "hybrid",
       .parallel = {.replicate = 2, .fully_sharded = by_size},
       .divides_ranks = 2},
      {.name = "tensor",
       .parallel =
           {.parallelize_plan =
                ParallelizePlan{
                    {"blocks.*.linear", gathered}, {"head", gathered}}},
       .axis = Axis::tensor},
      {.name = "context", .axis = Axis::context},
      {.name = "experts", .axis = Axis::expert, .has_experts = true},
      {.name = "experts_of_replicas", .has_experts = true},
      {.name = "ms_amp", .is_ms_amp = true},
      {.name = "float8_attention",
       .float8_attention = Float8Attention::per_head},
  };
}

using Case = std::tuple<Technique, Precision, int, int>;

class TechniqueParity : public ::testing::TestWithParam<Case> {};

std::string case_name(const ::testing::TestParamInfo<Case>& info) {
  const auto& [technique, precision, accumulation, num_ranks] = info.param;
  return technique.name + "_" + std::string(accelerate::name_of(precision)) +
      "_window" + std::to_string(accumulation) + "_ranks" +
      std::to_string(num_ranks);
}

ParityRun run_of(
    const Technique& technique,
    Precision precision,
    int accumulation,
    int num_ranks) {
  ParityRun run{
      .num_ranks = num_ranks,
      .gradient_accumulation_steps = accumulation,
      .has_experts = technique.has_experts};
  run.options.mixed_precision = precision;
  run.options.parallel = technique.parallel;
  run.options.master_weights = technique.master_weights;
  if (technique.axis == Axis::tensor) run.options.parallel.tensor = num_ranks;
  if (technique.axis == Axis::context) run.options.parallel.context = num_ranks;
  if (technique.axis == Axis::expert) run.options.parallel.expert = num_ranks;
  // With gradients of weights in high precision, every sample is scaled by
  // itself on any rank.
  if (precision == Precision::fp8) {
    run.options.fp8_recipe = AORecipeKwargs{
        .config = Float8LinearConfig::from_recipe_name("rowwise_with_gw_hp"),
        .module_filter_func = [](const std::string&, const torch::nn::Module&) {
          return true;
        }};
  }
  if (precision == Precision::fp8 && technique.is_ms_amp)
    run.options.fp8_recipe = MSAMPRecipeKwargs{"O1"};
  if (precision == Precision::fp8)
    run.options.fp8_attention = technique.float8_attention;
  // Avoids an overflow, which would skip a step.
  run.options.grad_scaler.init_scale = 128;
  if (technique.master_weights) {
    run.parameter_dtype =
        precision == Precision::fp16 ? torch::kHalf : torch::kBFloat16;
  }
  return run;
}

// In 16 bits a mean over fewer samples rounds differently: gradients differ by
// a few units of 2^-8, times steps and learning rate.
double tolerance_of(Precision precision) {
  return precision == Precision::no ? 1e-5 : 1e-2;
}

// The weights of one process, computed once for all cases that expect them.
const Weights& weights_of_one_process(
    const Technique& technique,
    Precision precision,
    int accumulation) {
  static std::map<
      std::tuple<bool, bool, bool, Float8Attention, Precision, int>,
      Weights>
      known;
  Technique plain;
  plain.master_weights = technique.master_weights;
  plain.has_experts = technique.has_experts;
  plain.is_ms_amp = technique.is_ms_amp;
  plain.float8_attention = technique.float8_attention;
  const std::tuple key(
      plain.master_weights,
      plain.has_experts,
      plain.is_ms_amp,
      plain.float8_attention,
      precision,
      accumulation);
  const auto found = known.find(key);
  if (found != known.end()) return found->second;
  Weights weights =
      train_parity_net(run_of(plain, precision, accumulation, 1)).weights;
  return known.emplace(key, std::move(weights)).first->second;
}

TEST_P(TechniqueParity, EndsWithTheWeightsOfOneProcess) {
  const auto& [technique, precision, accumulation, num_ranks] = GetParam();
  if (const auto missing = testing::missing_device_of_ranks(); !missing.empty())
    GTEST_SKIP() << "label gpu was not run: " << missing;
  if (num_ranks % technique.divides_ranks != 0)
    GTEST_SKIP() << "needs a multiple of " << technique.divides_ranks;
  if (technique.master_weights && precision == Precision::no)
    GTEST_SKIP() << "masters are of 16-bit parameters";
  const Weights& one =
      weights_of_one_process(technique, precision, accumulation);
  const Weights many =
      train_parity_net(run_of(technique, precision, accumulation, num_ranks))
          .weights;
  ASSERT_EQ(many.size(), one.size());
  const double tolerance = tolerance_of(precision);
  for (const auto& [name, tensor] : one) {
    ASSERT_TRUE(many.contains(name)) << name;
    const double difference =
        (many.at(name) - tensor).abs().max().item<double>();
    EXPECT_LE(difference, tolerance) << name;
    EXPECT_TRUE(std::isfinite(difference)) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(
    All,
    TechniqueParity,
    ::testing::Combine(
        ::testing::ValuesIn(techniques()),
        ::testing::Values(Precision::no, Precision::bf16),
        ::testing::Values(1, 3),
        ::testing::Values(1, 2, 3, 4)),
    case_name);

INSTANTIATE_TEST_SUITE_P(
    ScaledPrecision,
    TechniqueParity,
    ::testing::Combine(
        ::testing::ValuesIn(techniques()),
        ::testing::Values(Precision::fp16, Precision::fp8),
        ::testing::Values(3),
        ::testing::Values(2, 3)),
    case_name);

// What each technique has to train in: one whose name says it all, in fp8
// where the technique is about it.
Precision precision_of(const Technique& technique) {
  const bool is_fp8 = technique.is_ms_amp ||
      technique.float8_attention != Float8Attention::none;
  if (is_fp8) return Precision::fp8;
  return technique.master_weights ? Precision::bf16 : Precision::no;
}

void expect_same(
    const Technique& technique,
    const Weights& found,
    const Weights& expected) {
  ASSERT_EQ(found.size(), expected.size()) << technique.name;
  const double tolerance = tolerance_of(precision_of(technique));
  for (const auto& [key, tensor] : expected) {
    const double difference =
        (found.at(key) - tensor).abs().max().item<double>();
    EXPECT_LE(difference, tolerance) << technique.name << ": " << key;
  }
}

TEST(Techniques, TrainByPlainBackwards) {
  constexpr int kWindow = 3;
  for (const Technique& technique : techniques()) {
    const Precision precision = precision_of(technique);
    ParityRun run = run_of(technique, precision, kWindow, 2);
    run.is_plain = true;
    expect_same(
        technique,
        train_parity_net(run).weights,
        weights_of_one_process(technique, precision, kWindow));
  }
}

TEST(Techniques, ClipInTheirSteps) {
  for (const int window : {1, 3}) {
    for (const Technique& technique : techniques()) {
      const Precision precision = precision_of(technique);
      ParityRun run = run_of(technique, precision, window, 2);
      run.clips_in_step = true;
      expect_same(
          technique,
          train_parity_net(run).weights,
          weights_of_one_process(technique, precision, window));
    }
  }
}

// Where the handle's step does more than the optimizer's, an error says so.
TEST(Techniques, TrainByTheOptimizersOwnStepsOrNameThem) {
  // DeepSpeed's configuration clips; ZeRO-1 and 2 gather after the handle's
  // steps.
  const std::set<std::string> refusing{
      "master_weights", "zero1", "zero2", "zero3"};
  for (const Technique& technique : techniques()) {
    if (technique.is_ms_amp) continue;  // A warning says that it is needed.
    const Precision precision = precision_of(technique);
    ParityRun run = run_of(technique, precision, 1, 2);
    run.steps_itself = true;
    if (refusing.contains(technique.name)) {
      testing::expect_error<ConfigError>(
          [&] { train_parity_net(run); },
          "an optimizer was stepped itself, not by the handle");
      continue;
    }
    expect_same(
        technique,
        train_parity_net(run).weights,
        weights_of_one_process(technique, precision, 1));
  }
}

// Fails if a technique has no case above.
TEST(Techniques, AreAllInTheSuite) {
  std::set<std::string> found;
  for (const Technique& technique : techniques()) {
    for (const std::string& name :
         train_parity_net(run_of(technique, Precision::fp8, 1, 2)).strategies)
      found.insert(name);
  }
  std::set<std::string> all;
  for (const std::string_view name : detail::technique_names())
    all.emplace(name);
  EXPECT_EQ(found, all);
}

}  // namespace techniques_test
}  // namespace accelerate
